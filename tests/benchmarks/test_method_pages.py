"""Pages of baselines: one for each, and their numbers are those of the committed JSON."""

from __future__ import annotations

import re

import numpy as np
import pytest

import baselines
from benchmarks.records import RESULTS, read_record
from benchmarks.report.method_pages import BASELINES, FILES, method_page, title

NO_PAGE = {"__init__", "deterministic", "probvlm"}
"""The embedder as it is needs none; ProbVLM is of images and texts."""


def test_every_baseline_has_a_page_and_a_title_of_its_own():
    assert {path.stem for path in BASELINES.glob("*.py")} - NO_PAGE == set(FILES)
    titles = [title(file) for file in FILES]
    assert len(set(titles)) == len(titles)
    assert all(2 < len(words) < 60 for words in titles)


@pytest.mark.parametrize("file", FILES)
def test_a_page_shows_its_module_its_source_and_its_cost(file):
    page = method_page(file)
    assert f"::: baselines.{file}\n" in page
    assert "numbers added." in page
    assert page.startswith(f"# {title(file)}\n")
    assert re.search(r"Source: \w", page)


@pytest.mark.parametrize(("file", "words"), [("nuq", "fit adds"), ("hib", "training takes")])
def test_the_cost_is_that_of_the_table_of_all_methods(file, words):
    """A post-hoc one adds to the training; the other has its own."""
    table = (BASELINES / "README.md").read_text()
    (line,) = re.findall(rf"^\| \[{file}\].*$", table, flags=re.M)
    added, training, query = (cell.strip() for cell in line.split("|")[5:8])
    takes = f"Its {words} {training.removeprefix('+ ')}, a query {query} that of"
    assert takes in method_page(file)
    assert f"; {added} numbers added." in method_page(file)


def test_the_numbers_are_means_and_places_over_the_seeds():
    """R-AUROC of the deep ensemble on birds, from the rows themselves."""
    rows = [
        row for row in read_record("url", RESULTS / "small")["rows"]
        if row["task"] == "cub" and not row["method"].endswith(", on infonce")
    ]  # fmt: skip
    of: dict[str, list[float]] = {}
    for row in rows:
        value = row["metrics"].get("r_auroc", {}).get("value")
        if value is not None and row["method"] not in ("laplace, near", "laplace, far"):
            of.setdefault(row["method"], []).append(value)
    full = {name: np.array(values) for name, values in of.items() if len(values) == 3}
    ours = full["deep ensemble"]
    place = 1 + sum(values.mean() > ours.mean() for values in full.values())
    error = ours.std(ddof=1) / 3**0.5
    expected = f"{ours.mean():.3f} ± {error:.3f} ({place} of {len(full)})".replace("0.", ".")
    (line,) = re.findall(r"^\| birds, classes never.*$", method_page("deep_ensemble"), flags=re.M)
    assert line.split(" | ")[2] == expected


def test_public_methods_are_those_of_the_package():
    """A method that the package exports stands in a file that has a page."""
    modules = {getattr(baselines, name).__module__.split(".")[1] for name in baselines.__all__}
    assert modules - {"base", *NO_PAGE} <= set(FILES)
