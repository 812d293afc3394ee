"""Hashes of the code that a record depends on: what they cover, and what leaves them alone."""

from __future__ import annotations

import inspect
import os
import re
import sys
from operator import ne
from pathlib import Path

import pytest

import laplace_metric
from benchmarks import definitions, imports
from benchmarks.methods import BASE
from benchmarks.methods.code import code_of
from benchmarks.posterior import discount

RUNNER = definitions.COMPARISON


def test_a_hash_is_of_code_and_not_of_words():
    before = "def f(x):\n    return x + 1\n"
    words = '"""About."""\n\ndef f(x):\n    """Add."""\n    return x + 1  # one\n'
    shown = before + "\ndef some_table():\n    return 3\n"
    same = {definitions.plain_code(code) for code in (before, words, shown)}
    assert len(same) == 1
    assert definitions.plain_code(before.replace("1", "2")) not in same


def test_a_hash_covers_what_a_piece_imports_and_no_tables():
    covered = definitions.own_modules(RUNNER)
    assert {"baselines.mc_dropout", "benchmarks.sizes", "benchmarks.methods.table"} <= covered
    assert not {name for name in covered if name.startswith(definitions.WITHOUT_NUMBERS)}
    assert "benchmarks.tables" not in covered


def test_a_hash_changes_with_the_code_that_is_imported(monkeypatch):
    module = "benchmarks.retrieval.growing"
    before = definitions.definitions(module)
    plain = definitions.plain_code
    monkeypatch.setattr(definitions, "plain_code", lambda source: plain(source + "\nX = 1"))
    assert definitions.definitions(module) != before


def with_table(monkeypatch, change):
    """The table of methods after a change of its text; hashes are computed anew."""
    changed_code(monkeypatch, definitions.METHODS_TABLE, change)


def changed_code(monkeypatch, module, change=lambda text: text + "\nX = 1"):
    """A module after a change of its text; hashes are computed anew."""
    source = definitions.source
    for name in ("row", "own_modules", "_all_modules", "library", "training"):
        cached = getattr(definitions, name)
        monkeypatch.setattr(definitions, name, getattr(cached, "__wrapped__", cached))
    changed = lambda one: change(source(one)) if one == module else source(one)  # noqa: E731
    monkeypatch.setattr(definitions, "source", changed)


def test_a_method_that_is_added_leaves_the_hashes_of_the_others(monkeypatch):
    comparison, others = definitions.COMPARISON, ("nuq", "vim", "hib")
    before = definitions.definitions(comparison), *map(definitions.row, others)
    views = definitions.definitions("benchmarks.variants.views")
    nothing = definitions.row("my method")
    line = 'Entry("nnguide", "detector", gathered(baselines.NNGuide)),'
    mine = 'Entry("my method", "detector", gathered(baselines.NUQ)),'
    with_table(monkeypatch, lambda text: text.replace(line, line + mine))
    assert (definitions.definitions(comparison), *map(definitions.row, others)) == before
    assert definitions.row("my method") != nothing
    assert definitions.definitions("benchmarks.variants.views") != views


def test_a_row_that_changes_has_another_hash_and_the_others_have_not(monkeypatch):
    before = definitions.row("nuq"), definitions.row("vim"), definitions.definitions(RUNNER)
    with_table(
        monkeypatch, lambda text: text.replace("NUQ, normalise=True", "NUQ, normalise=False")
    )
    assert definitions.row("nuq") != before[0]
    assert (definitions.row("vim"), definitions.definitions(RUNNER)) == before[1:]


def test_a_row_covers_the_code_of_its_baseline(monkeypatch):
    before = definitions.row("nuq"), definitions.row("vim")
    changed_code(monkeypatch, "baselines.nuq")
    assert definitions.row("nuq") != before[0]
    assert definitions.row("vim") == before[1]


@pytest.mark.parametrize(
    ("changed", "of"),
    [
        ("calibration.guarantees._test_sequences", (True, True)),
        ("laplace._posterior", (False, True)),
        ("search.estimators", (False, False)),
        ("cli._serve", (False, False)),
    ],
)
def test_the_hash_of_the_library_is_of_the_modules_that_a_piece_imports(changed, of, monkeypatch):
    pieces = "benchmarks.retrieval.power", "benchmarks.posterior.frozen"
    before = [definitions.library(piece) for piece in pieces]
    changed_code(monkeypatch, f"laplace_metric.{changed}")
    now = [definitions.library(piece) for piece in pieces]
    assert tuple(map(ne, now, before)) == of


def test_a_name_counts_where_it_is_defined():
    for module, name, home in (
        ("laplace_metric", "Guard", "laplace_metric.guard"),
        ("laplace_metric", "Rule", "laplace_metric.calibration.rules._rule"),
        ("laplace_metric", "training", "laplace_metric.training"),
        ("laplace_metric.search", "Index", "laplace_metric.search._index"),
        ("laplace_metric._utils", "__version__", "laplace_metric._utils"),
        ("baselines", "NUQ", "baselines.nuq"),
        ("benchmarks.methods", "METHODS", "benchmarks.methods"),
    ):
        assert imports.home(module, name) == home


def test_no_import_hides_the_names_that_it_takes():
    """Of another name, of a star and of ``getattr`` the hashes would know nothing."""
    hiding = re.compile(
        r"import (laplace_metric|baselines) as |from (laplace_metric|baselines)[\w.]* import \*"
        r"|getattr\((laplace_metric|baselines),",
    )
    folders = (imports.ROOT / name for name in ("laplace_metric", "baselines", "benchmarks"))
    files = [path for folder in folders for path in folder.rglob("*.py")]
    found = [path for path in files if hiding.search(path.read_text())]
    shows = imports.ROOT / "benchmarks" / "report" / "method_table.py"  # no number depends on it
    assert found == [shows]


def test_every_name_of_the_library_has_a_home():
    for name in laplace_metric.__all__:
        path = imports.path_of(imports.home("laplace_metric", name))
        assert re.search(rf"^(def|class|async def) {name}\b|^{name} ?[:=]", path.read_text(), re.M)


def test_code_that_a_piece_runs_is_code_that_its_hash_covers():
    """Calls into the library, while a piece runs, are of modules that it imports by their names."""
    covered = {imports.path_of(name) for name in definitions._all_modules(discount.__name__)}
    files = set()

    def note(frame, event, argument):
        if event == "call" and frame.f_code.co_flags & inspect.CO_OPTIMIZED:  # no body of a class
            files.add(frame.f_code.co_filename)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        discount.measured(0)
    finally:
        sys.setprofile(before)
    library = imports.ROOT / "laplace_metric"
    called = {Path(file) for file in files if file.startswith(f"{library}{os.sep}")}
    assert len(called) > 50
    # the package's own file answers who asks for a name of it
    assert called - covered <= {library / "__init__.py"}


def test_the_hash_of_a_method_has_those_of_what_it_rests_on():
    base, shared = definitions.row(BASE), definitions.row("het-xl")
    assert code_of("vim") == f"{definitions.row('vim')} {base}"
    assert code_of("het-xl, class entropy").endswith(f" {shared}")
    assert code_of(BASE) == base


def test_the_code_of_a_training_is_what_it_needs_of_the_package(monkeypatch):
    """The optimiser's loop is part of it, the search is not."""
    module = "benchmarks.posterior.problems"
    before = definitions.training(module)
    changed_code(monkeypatch, "laplace_metric.search._index")
    assert definitions.training(module) == before
    changed_code(monkeypatch, "laplace_metric.training")
    assert definitions.training(module) != before
