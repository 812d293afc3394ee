"""Sentences that were measured at an earlier release name records that its commit has."""

from __future__ import annotations

import re
import subprocess

import pytest

from benchmarks import tables

HEADING = "## Measured before 0.4.0, no part of the run"
SECTIONS = {
    page: page.read_text().partition(HEADING)[2].partition("\n## ")[0]
    for page in tables.PAGES
    if HEADING in page.read_text()
}
COMMIT = re.search(r"git show (\w+):", tables.ROOT.joinpath("benchmarks/README.md").read_text())


def git(*words):
    return subprocess.run(["git", *words], cwd=tables.ROOT, capture_output=True, text=True)


@pytest.mark.parametrize("page", SECTIONS, ids=lambda page: page.parent.name)
def test_every_name_is_that_of_a_record_of_the_commit(page):
    found = git("ls-tree", "-r", "--name-only", COMMIT[1], "benchmarks/results")
    if found.returncode:
        pytest.skip("this clone has not the commit")
    there = {x.removeprefix("benchmarks/results/")[:-5] for x in found.stdout.split()}
    sentences = [line for line in SECTIONS[page].splitlines() if line.startswith("- ")]
    for line in sentences:
        (last,) = re.findall(r"\(([^()]*`)(?:, sweep)?\)(?=[.;:*]|$| breaks)", line)[-1:] or [""]
        names = re.findall(r"`([\w/-]+)`", last)
        assert names, line
        assert set(names) <= there, line
