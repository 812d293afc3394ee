"""Tests import what users import, and match what users may rely on in a message."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache

import pytest

from tests.conftest import ROOT
from tests.test_house import PACKAGE, exports

MOST_WORDS = 6
"""Words in a row that a `match=` may hold."""
SENTENCES: dict[str, str] = {}
"""Patterns in which a longer text is what is tested, each with the reason."""
NEWLINE = "\n"
PRIVATE = r"laplace_metric(?:\.\w+)*\._[\w.]*"
IMPORT = re.compile(rf"^[ \t]*(from {PRIVATE} import (?:\([^)]*\)|.+))", re.MULTILINE)
LITERAL = r"""[rf]{0,2}(?:"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')"""
MATCH = re.compile(rf"\bmatch=\(?\s*((?:{LITERAL}\s*)+)")
"""A literal, or several that Python joins."""


@cache
def texts_of_tests() -> dict[str, str]:
    """Map the path of each file of tests to its text."""
    paths = sorted((ROOT / "tests").rglob("*.py"))
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}


def found_in_tests(pattern: re.Pattern[str]) -> Iterator[tuple[str, re.Match[str]]]:
    """Yield each match with its "file:line". Parsing all files would take seconds."""
    for path, text in texts_of_tests().items():
        for found in pattern.finditer(text):
            yield f"{path}:{text.count(NEWLINE, 0, found.start(1)) + 1}", found


@cache
def public_homes() -> dict[str, list[str]]:
    """Map each exported name to the public modules that export it, the most specific first."""
    homes: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        if not is_private(".".join(parts)):
            for name in exports(path):
                homes.setdefault(name, []).append(".".join(parts))
    return {name: sorted(found, key=len, reverse=True) for name, found in homes.items()}


def is_private(module: str) -> bool:
    return any(part.startswith("_") for part in module.split("."))


def public_home(module: str, name: str) -> str | None:
    """Return the public module that offers this very object, or None."""
    for home in public_homes().get(name, []):
        here, there = (getattr(importlib.import_module(m), name, None) for m in (module, home))
        if here is there is not None:
            return home
    return None


def private_imports() -> Iterator[tuple[str, str, str]]:
    """Yield place, module and name of each import from a private module of the package."""
    for where, found in found_in_tests(IMPORT):
        (statement,) = ast.parse(found[1]).body
        assert isinstance(statement, ast.ImportFrom)
        assert statement.module
        for alias in statement.names:
            yield where, statement.module, alias.name


def expression(source: str) -> ast.AST:
    return ast.parse(f"({source})", mode="eval").body


def text_of(value: ast.AST) -> str:
    """Return a literal, each value of an f-string as one word; "" for other expressions."""
    if isinstance(value, ast.JoinedStr):
        return "".join(text_of(part) or "X" for part in value.values)
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""


def words_in_a_row(pattern: str) -> int:
    """Count the words of the longest part of a pattern between `.*`, `.+` and `|`."""
    return max(len(part.split()) for part in re.split(r"\.[*+]\??|\|", pattern))


@pytest.mark.parametrize(
    ("module", "name", "home"),
    [
        ("laplace_metric.search.engines._engine", "Flat", "laplace_metric.search"),
        ("laplace_metric.calibration.rules._rule", "Rule", "laplace_metric.calibration"),
        ("laplace_metric.search.engines._engine", "FlatEngine", None),
        ("laplace_metric.search._report", "Flat", None),  # of that name, but not there
    ],
)
def test_the_public_home_of_a_name_is_found(module, name, home):
    assert public_home(module, name) == home


def test_no_test_takes_a_public_name_from_a_private_module():
    faults = [
        f"{where}: from {home} import {name}, not from {module}"
        for where, module, name in private_imports()
        if (home := public_home(module, name))
    ]
    assert not faults, "Import public names as users do:\n" + "\n".join(faults)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("labels", 1),
        ("labels has 3.*5 items", 3),
        ("a b|c d e.+f", 3),
        (r"row 3 \(1 of 2\)", 5),
    ],
)
def test_words_in_a_row_end_where_anything_may_follow(source, words):
    assert words_in_a_row(source) == words


def test_the_values_of_an_f_string_are_one_word_each():
    assert text_of(expression("f'{a + b} of {len(c)} rows'")) == "X of X rows"


def test_no_test_matches_the_sentence_of_a_message():
    found = {
        pattern: f"{where}: {pattern!r}"
        for where, literal in found_in_tests(MATCH)
        if words_in_a_row(pattern := text_of(expression(literal[1]))) > MOST_WORDS
    }
    faults = [where for pattern, where in found.items() if pattern not in SENTENCES]
    assert not faults, (
        f"More than {MOST_WORDS} words in a row. Match the argument, its value and the advice, "
        "with .* between them:\n" + "\n".join(faults)
    )
    assert not SENTENCES.keys() - found.keys(), "No test matches these any more."
