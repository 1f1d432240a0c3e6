"""The documentation's links lead somewhere, anchors included; its Python, its plan and its options are real."""

from __future__ import annotations

import ast
import dataclasses
import re
from pathlib import Path

import pytest

from distributed_embeddings.cli import options
from distributed_embeddings.planner import ShardingPlan

ROOT = Path(__file__).resolve().parents[1]
PAGES = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\((?!https?:)([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    """Headings as GitHub turns them into anchors."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_relative_links_exist(page):
    missing = []
    for link in LINK.findall(FENCE.sub("", page.read_text())):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        inside = target.is_relative_to(ROOT) and target.exists()
        if not inside or (anchor and anchor not in anchors(target)):
            missing.append(link)
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_python_snippets_compile(page):
    for language, text in FENCE.findall(page.read_text()):
        if language == "python":
            ast.parse(text, filename=str(page))


def test_the_plan_of_the_reference_is_a_plan():
    _, text = FENCE.findall((ROOT / "docs/reference/plan-json.md").read_text())[0]
    assert ShardingPlan.from_json(text).world_size == 2


def test_the_command_line_reference_names_every_option_and_no_other():
    groups = [c for c in vars(options).values() if dataclasses.is_dataclass(c)]
    fields = {f.name for c in groups for f in dataclasses.fields(c)} - {
        "inputs",
        "network",
        "sharding",
        "run",
    }
    told = set(re.findall(r"--([a-z0-9][a-z0-9-]*)", (ROOT / "docs/reference/cli.md").read_text()))
    assert told == {name.replace("_", "-") for name in fields} | {"help"}
