"""The Markdown of `demb bench ops` from its JSON: arithmetic on what was measured, and plain words."""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from .cases import Case
from .markdown import heading, milliseconds, table
from .stats import Ratio, geometric_mean, ratio, summarise

TITLES = {
    "ours": "ours", "plain_tf": "ours on plain TF ops", "keras": "Keras 3", "fbgemm": "FBGEMM CPU",
    "fbgemm_huge": "FBGEMM CPU with huge pages", "embedding_bag": "torch EmbeddingBag",
}  # fmt: skip
ISSUE_TABLES = 26
AIMS = {1: 3.5, 2: 6.0}
"""Geometric mean of FBGEMM CPU ÷ ours that is aimed at, by threads; no single case below WORST."""
WORST = 1.5
QUIET = 0.05
"""Share of the machine that other programs may take while a case is measured."""

NOTES = """
How to read it. A case is `tables × rows × dim - hotness - batch - distribution - rule - threads`. Competitors are live
processes that take turns (A B A B), all others idle; the first step of a turn is dropped; batches of ids are prepared
beforehand, the same for all, and differ from step to step.

- *lookup*: forward without gradient. *both*: forward, gradient, optimizer. *update*: the difference of the two.
- Times are medians over rounds of the turns' medians, the fastest step in parentheses. Ratios are peer ÷ ours, of
  medians, with the least and the greatest ratio of a round in brackets; above 1 ours is faster.
- An id is its popularity rank: frequent rows are neighbours in memory.
- FBGEMM's wheel computes this operator's update on one core whatever number of threads it is given: beside two threads
  of ours it is one core against two. It is given no bounds check of ids; ours checks them. Neither is given outputs or
  buffers to reuse; what its allocator keeps is its own affair.
- FBGEMM 1.8.0 writes the code of its row-wise Adagrad at run time and mixes old SSE instructions (movss, addss, divss,
  sqrtss) with AVX ones whose upper halves are in use. On an Intel Xeon (family 6, model 167) going from one to the
  other and back costs 0.12 µs, and a profile shows most of that update to be waiting there; on an AMD EPYC (Zen 4)
  it is not seen. So ratios of row-wise Adagrad on such an Intel machine say nothing about AMD's.
- *Share of limit*: bytes of rows that must move a second, as a share of what the machine's memory gives for random rows
  of that size on a table of 4 GiB in huge pages, taking its turns among the competitors. A lookup moves every row
  asked; an update every distinct row with its state, once. Above 100 % caches serve repeated rows, as under Zipf: only
  tables far beyond the caches with uniform ids say something about memory.
""".strip().splitlines()


def report_lines(report: dict[str, Any]) -> list[str]:
    """The whole report."""
    results = report["results"]
    measured = [r for r in results if any("turns" in c for c in r["competitors"].values())]
    settings = report["settings"]
    commits = ", ".join(sorted({r["commit"] for r in results}))
    lines = [f"# Embedding operations, suite `{settings['suite']}`", "", *heading(report)]
    lines += [
        f"- Peers: {_peer_versions(measured)}",
        *[f"- {remark}" for remark in report.get("remarks", [])],
    ]
    lines += [f"- {settings['repeats']} rounds a case, or as many as begin in {settings['max_seconds']:g} s"]
    lines += [
        f"- Cases measured at commit {commits}; highest load before a case {_highest_load(results):.2f}",
        "",
    ]
    lines += ["## Summary", "", *summary(measured), "", *NOTES, "", "## Limits of this machine", ""]
    lines += [*limit_lines(measured), "", "## Cases", "", *case_table(measured), ""]
    lines += [
        *row_lines(measured),
        "## Memory of ours",
        "",
        *memory_table(measured),
        "",
        "## Left out",
        "",
        *left_out(results),
    ]
    return lines


def totals(results: Iterable[dict[str, Any]], peer: str) -> dict[tuple[int, str], dict[str, Ratio]]:
    """Ratios of `both`, peer ÷ ours, as [threads, rule][case key], rule "all" being every rule; only cases of 26
    tables."""
    found: dict[tuple[int, str], dict[str, Ratio]] = defaultdict(dict)
    for result in results:
        value = ratio_of(result, peer, "both")
        case = result["case"]
        if value is not None and case["tables"] == ISSUE_TABLES:
            for rule in (case["rule"], "all"):
                found[case["threads"], rule][result["case_key"]] = value
    return dict(found)


def ratio_of(result: dict[str, Any], peer: str, phase: str) -> Ratio | None:
    """peer ÷ ours of one case; None unless both were measured."""
    sides = [result["competitors"].get(name, {}).get("turns") for name in (peer, "ours")]
    return ratio(sides[0][phase], sides[1][phase]) if all(sides) else None


def summary(results: list[dict[str, Any]]) -> list[str]:
    """Geometric means of the ratios of `both` by competitor, threads and rule, and the worst case of each."""
    rows: list[list[object]] = []
    for peer in (name for name in TITLES if name != "ours"):
        for (threads, rule), ratios in sorted(totals(results, peer).items()):
            worst = min(ratios, key=lambda key: ratios[key].value)
            mean = geometric_mean([r.value for r in ratios.values()])
            rows.append(
                [
                    TITLES[peer],
                    threads,
                    rule,
                    len(ratios),
                    f"{mean:.2f}",
                    f"{ratios[worst].text()} at {worst}",
                    sum(r.value < WORST for r in ratios.values()),
                    _aim(peer, threads, mean, ratios[worst].value) if rule == "all" else "",
                ]
            )
    headers = ["peer", "threads", "rule", "cases", "geometric mean of peer ÷ ours (both)", "worst",
               f"below {WORST:g}", "aim"]  # fmt: skip
    if not rows:
        return ["No case of 26 tables was measured with a peer."]
    lines = [
        *table(headers, rows),
        "",
        f"Only cases of {ISSUE_TABLES} tables count here; all others are below.",
    ]
    return [*lines, *noise(results)]


def noise(results: list[dict[str, Any]]) -> list[str]:
    """What to think of a machine that was not quiet."""
    loud = [r for r in results if r.get("others_share", 0.0) > QUIET]
    if not loud:
        return []
    return [
        f"{len(loud)} of {len(results)} cases were measured while other programs (or other guests of the host) took "
        f"more than {QUIET:.0%} of the machine. They count above and are marked below. Do not trust them, least of all "
        "with two threads: OpenMP's threads, which torch uses, wait for each other in loops, and a step then takes "
        "many times as long as on a quiet machine."
    ]


def _aim(peer: str, threads: int, mean: float, worst: float) -> str:
    if peer != "fbgemm" or threads not in AIMS:
        return ""
    met = mean >= AIMS[threads] and worst >= WORST
    return f"≥ {AIMS[threads]:g}, none below {WORST:g}: {'met' if met else 'missed'}"


def row_lines(results: list[dict[str, Any]]) -> list[str]:
    """Cases of "spread" ids that differ in rows alone: time of the largest table ÷ time of the smallest, of ours."""
    groups: dict[str, dict[int, Any]] = defaultdict(dict)
    for result in results:
        case = Case(**result["case"])
        turns = result["competitors"].get("ours", {}).get("turns")
        if case.distribution == "spread" and turns:
            groups[dataclasses.replace(case, rows=0).key][case.rows] = turns
    rows = []
    for key, by_rows in sorted(groups.items()):
        small, large = min(by_rows), max(by_rows)
        if small < large:
            over = [
                summarise(by_rows[large][phase]).median / summarise(by_rows[small][phase]).median
                for phase in ("lookup", "both")
            ]
            rows.append([key, f"{large:.0e} ÷ {small:.0e}", *[f"{value:.2f}" for value in over]])
    headers = ["case but for its rows", "rows", "lookup", "both (aim: at most 2)"]
    return ["## Time and a table's rows", "", *table(headers, rows), ""] if rows else []


def case_table(results: list[dict[str, Any]]) -> list[str]:
    """One line a case and competitor: times, ratios, shares of the limit."""
    rows = []
    for result in results:
        for name, competitor in result["competitors"].items():
            if "turns" not in competitor or name == "limit":
                continue
            lookup, both = (summarise(competitor["turns"][phase]) for phase in ("lookup", "both"))
            ratios = [
                ratio_of(result, name, phase) if name != "ours" else None for phase in ("lookup", "both")
            ]
            rows.append([
                result["case_key"] + _note(result, both.rounds), _title(name, competitor),
                f"{milliseconds(lookup.median)} ({milliseconds(lookup.minimum)})",
                milliseconds(both.median - lookup.median),
                f"{milliseconds(both.median)} ({milliseconds(both.minimum)})",
                *[r.text() if r else "" for r in ratios],
                *[percent(x) for x in shares(result, name)],
            ])  # fmt: skip
    headers = ["case", "competitor", "lookup ms", "update ms", "both ms", "÷ ours, lookup", "÷ ours, both",
               "limit, lookup", "limit, update"]  # fmt: skip
    return table(headers, rows)


def _title(name: str, competitor: dict[str, Any]) -> str:
    lacks = name == "ours" and competitor["info"].get("kernels") is False
    return TITLES[name] + (" (its kernels are NOT built)" if lacks else "")


def _note(result: dict[str, Any], rounds: int) -> str:
    others = result.get("others_share", 0.0)
    short = "" if result["all_rounds"] else f", {rounds} rounds"
    return short + (f", others took {others:.0%}" if others > QUIET else "")


def limit_of(result: dict[str, Any]) -> dict[str, float] | None:
    """Bytes of rows a second that the machine gathered and modified beside a case; None where it was not measured."""
    limit = result["competitors"].get("limit", {})
    if "turns" not in limit:
        return None
    case, count = Case(**result["case"]), limit["info"]["count"]
    sizes = {"gather": case.row_bytes, "modify": case.row_bytes + case.slot_bytes}
    return {phase: count * size / summarise(limit["turns"][phase]).median for phase, size in sizes.items()}


def shares(result: dict[str, Any], name: str) -> tuple[float | None, float | None]:
    """Shares of the limit that lookup and update reach; None where the limit is not known."""
    case, limit = Case(**result["case"]), limit_of(result)
    if limit is None:
        return None, None
    competitor = result["competitors"][name]
    looked_up, both = (summarise(competitor["turns"][phase]).median for phase in ("lookup", "both"))
    rows = competitor["info"]["unique_rows"] * (case.row_bytes + case.slot_bytes)
    return (
        case.ids * case.row_bytes / looked_up / limit["gather"],
        rows / (both - looked_up) / limit["modify"] if both > looked_up else None,
    )


def limit_lines(results: list[dict[str, Any]]) -> list[str]:
    """The machine's limits by size of row and threads: medians over cases, the least and the greatest in brackets."""
    found: dict[tuple[int, int], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for result in results:
        if (limit := limit_of(result)) is not None:
            case = Case(**result["case"])
            found[case.threads, case.row_bytes]["gather"].append(limit["gather"] / 1e9)
            found[case.threads, case.row_bytes + case.slot_bytes]["modify"].append(limit["modify"] / 1e9)
    if not found:
        return ["Not measured."]
    rows = [
        [row_bytes, threads, *[_spread(by_phase[phase]) for phase in ("gather", "modify")]]
        for (threads, row_bytes), by_phase in sorted(found.items())
    ]
    return table(["row, bytes", "threads", "random gather, GB/s", "random modify, GB/s"], rows)


def _spread(values: list[float]) -> str:
    if not values:
        return ""
    return f"{statistics.median(values):.2f} [{min(values):.2f}–{max(values):.2f}]"


def memory_table(results: list[dict[str, Any]]) -> list[str]:
    """Resident memory of ours after the first steps, and what it grew by at its peak since."""
    rows = []
    for result in results:
        ours = result["competitors"].get("ours", {})
        if "memory_after" not in ours:
            continue
        before, after = ours["memory_before"], ours["memory_after"]
        tables = Case(**result["case"]).table_bytes
        growth = after["peak"] - before["resident"]
        rows.append([
            result["case_key"], f"{tables / 2**20:.0f}", f"{before['resident'] / 2**20:.0f}",
            f"{growth / 2**20:+.1f}", ours["steps"],
        ])  # fmt: skip
    headers = ["case", "tables, MiB", "resident before, MiB", "peak growth, MiB", "steps"]
    return table(headers, rows)


def left_out(results: list[dict[str, Any]]) -> list[str]:
    """Cases that were not measured at all with their reasons, then competitors left out of cases, counted."""
    lines, counts = [], Counter()
    for result in results:
        whole = not any("turns" in c for c in result["competitors"].values())
        for name, reason in result["skipped"].items():
            first = reason.splitlines()[0]
            if whole and first.startswith(("does not fit:", "failed", "not measured")):
                lines.append(f"- {result['case_key']}: {TITLES.get(name, name)} {first}")
            elif not whole:
                counts[TITLES.get(name, name), first] += 1
    lines += [f"- {title}: {reason} ({n} cases)" for (title, reason), n in sorted(counts.items())]
    return lines or ["Nothing."]


def _peer_versions(results: list[dict[str, Any]]) -> str:
    found = {
        f"{package} {c['info'][package]}"
        for r in results
        for c in r["competitors"].values()
        for package in ("torch", "fbgemm_gpu")
        if package in c["info"]
    }
    return ", ".join(sorted(found)) or "none"


def _highest_load(results: list[dict[str, Any]]) -> float:
    return max((r["load_before"]["load_1min"] for r in results), default=0.0)


def percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"
