"""`demb bench ops`: lookup and update of embedding tables against the peers, case by case."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import machine, markdown
from .cases import Case, bytes_needed
from .competitors import COMPETITORS, MAKE_PEERS, find_peers, refusal
from .crew import Crew
from .interleave import Run, interleave
from .ops_report import percent, report_lines, shares
from .options import OpsOptions
from .peers.made_ids import IDS_FOLLOW
from .process import WorkerError
from .stats import ratio, summarise
from .suites import SUITES, Entry

_SPARE = 0.85
"""Share of the free memory that competitors may take."""


def run_ops(options: OpsOptions) -> int:
    """Measure all cases of a suite; after each the report on disk is whole. Returns 1 when a case failed."""
    entries = chosen(options)
    peers = find_peers(options.peers)
    if peers is None and any(COMPETITORS[name].is_peer for entry in entries for name in entry.competitors):
        print(f"no environment of the peers: they are left out. To have them, {MAKE_PEERS}", flush=True)
    path = report_path(options)
    old = of_this_machine(path) if path.exists() else None
    report = old if options.resume and old is not None else new_report(options)
    report["results"] = [r for r in report["results"] if not failures(r)]
    done = {result["case_key"] for result in report["results"]}
    left = in_order([entry for entry in entries if entry.case.key not in done], options.shuffle)
    print(f"{len(left)} cases of {len(entries)}; report: {path}", flush=True)
    failed = 0
    with Crew(peers) as crew:
        for number, entry in enumerate(left, 1):
            result = run_case(entry, options, crew, peers is not None)
            failed += bool(failures(result))
            report["results"].append(result)
            save(report, path)
            print(f"[{number}/{len(left)}] {told(result)}", flush=True)
    save(report, path)
    return 1 if failed else 0


def failures(result: dict[str, Any]) -> list[str]:
    """What went wrong in a case, in distinction to what does not compete."""
    return [reason for reason in result["skipped"].values() if reason.startswith("failed")]


def new_report(options: OpsOptions) -> dict[str, Any]:
    settings = {"suite": options.suite, "repeats": options.repeats, "max_seconds": options.max_seconds}
    return {"kind": "ops", **machine.environment(), "settings": settings, "results": []}


def of_this_machine(path: Path) -> dict[str, Any]:
    """An earlier report. Raises ValueError when it is of another machine: it is not mixed with this one's, nor lost."""
    report: dict[str, Any] = json.loads(path.read_text())
    here, there = machine.machine(), report["machine"]
    other = [key for key in ("cpu", "cores", "caches") if here[key] != there[key]]
    if other:
        raise ValueError(
            f"`--name` must not name a report of another machine. Received: {path}, measured on"
            f" {', '.join(f'{key} {there[key]}' for key in other)}; here it is"
            f" {', '.join(f'{key} {here[key]}' for key in other)}. Give a --name of its own to this machine's."
        )
    return report


def report_path(options: OpsOptions) -> Path:
    """The JSON file; with --resume the newest one of the suite."""
    out = options.out
    if options.name is not None:
        return out / f"{options.name}.json"
    if options.resume and (old := sorted(out.glob(f"*-ops-{options.suite}.json"))):
        return old[-1]
    return out / f"{machine.now()[:10]}-ops-{options.suite}.json"


def chosen(options: OpsOptions) -> list[Entry]:
    """The suite's entries that --filter and --competitors leave."""
    try:
        pattern = re.compile(options.filter or "")
    except re.error as error:
        raise ValueError(
            f"`--filter` must be a regular expression. Received: --filter {options.filter!r}: {error}"
        ) from error
    wanted = options.competitors
    unknown = sorted(set(wanted) - set(COMPETITORS))
    if unknown:
        raise ValueError(
            f"`--competitors` must be of {sorted(COMPETITORS)}. Received: --competitors {' '.join(unknown)}"
        )
    entries = [e for e in SUITES[options.suite]() if pattern.search(e.case.key)]
    if not entries:
        raise ValueError(
            f"`--filter` must match a case of suite {options.suite}, such as {SUITES[options.suite]()[0].case.key}. "
            f"Received: --filter {options.filter!r}"
        )
    return [Entry(e.case, tuple(wanted) or e.competitors) for e in entries]


def in_order(entries: Sequence[Entry], shuffle: bool) -> list[Entry]:
    """Cases of the same ids and threads one after another: ids and processes are kept from case to case. shuffle:
    these groups in a random order, always the same."""

    def group(entry: Entry) -> tuple[Any, ...]:
        return (entry.case.threads, *(getattr(entry.case, field) for field in IDS_FOLLOW))

    keys = list(dict.fromkeys(map(group, entries)))
    if shuffle:
        random.Random(0).shuffle(keys)
    place = {key: i for i, key in enumerate(keys)}
    return sorted(entries, key=lambda entry: place[group(entry)])


def run_case(entry: Entry, options: OpsOptions, crew: Crew, have_peers: bool) -> dict[str, Any]:
    """Measure one case with all competitors that fit; a JSON-able result."""
    case, began, others = entry.case, time.monotonic(), machine.OthersClock()
    budget = int((crew.free() + machine.meminfo("MemAvailable")) * _SPARE)
    names, skipped = fitting(entry, budget, have_peers)
    result: dict[str, Any] = {
        "case": case.to_dict(), "case_key": case.key, "date": machine.now(), "commit": machine.commit(),
        "load_before": machine.load(), "skipped": skipped, "competitors": {}, "all_rounds": True,
    }  # fmt: skip
    if not names:
        return result
    for name, said in crew.build(names, case).items():
        if isinstance(said, WorkerError):
            skipped[name] = f"{'not measured' if name == 'limit' else 'failed'}: {said}"
        else:
            memory = crew[name].ask({"memory": "reset"})
            result["competitors"][name] = {"info": said, "steps": 0, "memory_before": memory}
    if names[0] in result["competitors"]:  # the others' ratios are against it
        check_same_ids(result["competitors"])
        _measure(crew, case, options, result)
    result["others_share"] = round(others.share(), 4)
    result["seconds"] = round(time.monotonic() - began, 1)
    return result


def fitting(entry: Entry, budget: int, have_peers: bool) -> tuple[list[str], dict[str, str]]:
    """(competitors that run, why the others do not) within `budget` bytes. All are live at once, the earlier in the
    list first; when the first two do not fit together, none runs: a ratio needs both."""
    names: list[str] = []
    skipped: dict[str, str] = {}
    used = 0
    # The limit is nobody's rival: it gives way to all.
    order = sorted(entry.competitors, key=lambda name: name == "limit")
    for name in order:
        reason = refusal(name, entry.case)
        if reason is None and COMPETITORS[name].is_peer and not have_peers:
            reason = "no environment of the peers"
        needs = bytes_needed(entry.case, name)
        if reason is None and used + needs > budget:
            reason = (
                f"does not fit: {needs / 2**30:.1f} GiB beside {used / 2**30:.1f} of {budget / 2**30:.1f} GiB"
            )
        if reason is None:
            names.append(name)
            used += needs
        else:
            skipped[name] = reason
    rivals = [name for name in order if name != "limit"][:2]
    lost = [name for name in rivals if skipped.get(name, "").startswith("does not fit")]
    if lost and names:
        skipped |= dict.fromkeys(names, f"{lost[0]} does not fit beside it")
        names = []
    return names, skipped


def check_same_ids(competitors: dict[str, Any]) -> None:
    """Raise ValueError when competitors do not look up the same ids."""
    sums = {name: c["info"]["checksum"] for name, c in competitors.items() if name != "limit"}
    if len(set(sums.values())) > 1:
        raise ValueError(f"competitors must be given the same ids. Received: checksums {sums}")


def _measure(crew: Crew, case: Case, options: OpsOptions, result: dict[str, Any]) -> None:
    """Take turns; where a competitor fails the case is kept without turns and says why, but for the limit."""
    found = result["competitors"]
    failed: list[str] = []

    def run_of(name: str) -> Run:
        def run(phase: str, count: int) -> list[float]:
            found[name]["steps"] += count * case.steps_per_call
            timeout = max(600.0, 20 * options.max_seconds)
            try:
                answer = crew[name].ask({"run": phase, "count": count}, timeout)
            except WorkerError:
                failed.append(name)
                raise
            return [float(s) for s in answer["seconds"]]

        return run

    try:
        turns, result["all_rounds"] = interleave(
            {name: run_of(name) for name in found},
            {name: COMPETITORS[name].phases for name in found},
            options.repeats,
            options.max_seconds,
        )
        for name in found:
            found[name]["turns"] = turns[name]
            found[name]["memory_after"] = crew[name].ask({"memory": "now"})
    except WorkerError as error:
        if failed == ["limit"]:
            result["skipped"]["limit"] = f"not measured: {error}"
            crew.drop("limit")
            del found["limit"]
            return _measure(crew, case, options, result)
        result["skipped"]["all"] = f"failed: {error}"
        for name in found:
            found[name].pop("turns", None)
            crew.drop(name)


def save(report: dict[str, Any], path: Path) -> None:
    """JSON and, beside it, Markdown."""
    markdown.write(path, [json.dumps(report)])
    markdown.write(path.with_suffix(".md"), report_lines(report))


def told(result: dict[str, Any]) -> str:
    """A case in a line or a few, for the terminal."""
    parts = [result["case_key"] + ":"]
    found = {n: c for n, c in result["competitors"].items() if "turns" in c and n != "limit"}
    for name, competitor in found.items():
        both = competitor["turns"]["both"]
        text = f"{name} {markdown.milliseconds(summarise(both).median)} ms"
        if name != "ours" and "ours" in found:
            text += f" (×{ratio(both, found['ours']['turns']['both']).text()})"
        parts.append(text)
    if "ours" in found and "limit" in result["competitors"]:
        parts.append("share of limit " + ", ".join(percent(x) or "unknown" for x in shares(result, "ours")))
    parts += [f"{name} skipped: {brief(reason)}" for name, reason in result["skipped"].items()]
    return "; ".join(parts).replace(":;", ":", 1)


def brief(reason: str) -> str:
    """First and last line of a reason: what happened, and the error at the end of a trace. The report has it all."""
    lines = reason.splitlines()
    return lines[0] if len(lines) == 1 else f"{lines[0]} … {lines[-1].strip()}"


def run_report(paths: Sequence[Path]) -> int:
    """`demb bench report`: write the Markdown of reports' JSON files again."""
    from . import pipeline_report, quality, train_report

    lines_of = {
        "ops": report_lines,
        "train": train_report.report_lines,
        "pipeline": pipeline_report.report_lines,
        "quality": quality.report_lines,
    }
    for path in paths:
        report = json.loads(path.read_text())
        if report.get("kind") not in lines_of:
            raise ValueError(
                f"`files` must be reports of `demb bench ops`, `train`, `pipeline` or `quality`. Received: {path}"
            )
        markdown.write(path.with_suffix(".md"), lines_of[report["kind"]](report))
    return 0
