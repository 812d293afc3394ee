"""The README runs, and its numbers are those of the committed JSON."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import tables

README = Path(__file__).parent.parent / "README.md"
BASELINES = README.parent / "baselines" / "README.md"


@pytest.mark.parametrize("page", [README, BASELINES], ids=["first page", "baselines"])
def test_the_code_runs_in_order(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.S)
    assert blocks
    scope: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(page), "exec"), scope)
    assert "torch.Size([8, 16])" in capsys.readouterr().out


def test_every_console_block_is_run_by_a_test():
    """The demo, the tests themselves, the walk-through."""
    marks = re.findall(r"<!-- (.*) -->\n```console\n", README.read_text())
    assert marks == ["demo command", "test command", "walk-through"]
    assert README.read_text().count("```console\n") == len(marks)


@pytest.mark.parametrize("page", tables.PAGES, ids=lambda page: page.parent.name)
def test_tables_are_those_of_the_json(page):
    text = page.read_text()
    assert "<!-- table:" in text
    assert tables.filled(text) == text


def test_figures_exist():
    for name in re.findall(r"!\[.*?\]\((.*?)\)", README.read_text()):
        assert (README.parent / name).is_file(), name
