"""Places that can be wrong: what is drawn from a line, and what is left alone."""

from __future__ import annotations

import ast

import pytest

from tests.mutants import ROOT
from tests.mutants.operators import places


def mutated(line: str) -> set[str]:
    """Return all that a line in a function can become."""
    source = f"def f():\n    {line}\n".encode()
    return {
        edit.applied(source).decode().partition("\n")[2].strip()
        for place in places(source)
        for edit in place.edits
    }


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("return a < b", {"return a <= b", "return a >= b"}),
        ("return a == b != c", {"return a != b != c", "return a == b == c"}),
        ("return a - b", {"return a + b", "return a"}),
        ("return a * b", {"return a / b", "return a", "return b"}),
        ("return a and b", {"return (a or b)", "return (b)", "return (a)"}),
        ("return not a", {"return a"}),
        ("return 3", {"return 4", "return 2"}),
        ("return -1", {"return -2", "return 0"}),
        ("return 0.5", {"return 1.0", "return 0.0"}),
        ("return True", {"return False"}),
        ("return max(a)", {"return min(a)"}),
        ("return a.any()", {"return a.all()"}),
        ("return f(a, b)", {"return f(b, a)"}),
        ("return f(a, k=b)", {"return f(a)"}),
        ("return f(k=a, l=b)", {"return f(l=b)", "return f(k=a)"}),
        ("return f(a, axis=1)", {"return f(a, axis=0)"}),
        ("return a[:n]", {"return a[:n + 1]", "return a[:n - 1]"}),
        ("return a if b else c", {"return a", "return c"}),
        ("return [a for a in b if c]", {"return [a for a in b if True]"}),
        ("if a: raise E", {"if False: raise E", "if a: pass"}),
        ("a += b", {"a -= b", "pass"}),
        ("f(a)", {"pass"}),
    ],
)
def test_a_line_can_be_wrong_in_these_ways(line, expected):
    assert mutated(line) == expected


def test_a_term_that_is_left_out_keeps_the_brackets_of_the_other():
    assert "return a - (b + c)" in mutated("return a - (b + c) * d")


@pytest.mark.parametrize(
    "line",
    [
        '"""Text of 3 < 4."""',
        "a: Literal[1] = b",
        'raise E(f"{a + 1} of {b - 1}", 3)',
        "_LOG.info(a + 1)",
        "BLOCK = 3",
        "if TYPE_CHECKING: a = 1",
        'a = f"{b + 1}"',
        "a = isinstance(b, c)",
        "a = f(b, progress=c)",
        "assert a < b",
    ],
)
def test_what_is_shown_or_typed_is_left_alone(line):
    assert mutated(line) <= {"pass"}, "only the whole statement may be left out"


def test_annotations_and_decorators_are_left_alone_but_defaults_are_not():
    source = b"@cache(3)\ndef f(a: Literal[1] = 2) -> Literal[4]:\n    return a\n"
    (place,) = places(source)
    assert [edit.what for edit in place.edits] == ["2 becomes 3", "2 becomes 1"]
    assert place.run == (3, 3), "tests that call the function, not those that import it"


def test_lines_of_a_place_are_those_of_its_statement():
    source = b"def f(a):\n    if (a >\n        1):\n        g(\n            2)\n"
    run = {place.line: place.run for place in places(source)}
    assert run == {2: (2, 3), 3: (2, 3), 4: (4, 5), 5: (4, 5)}


@pytest.mark.parametrize("file", ["curvature/by_class.py", "guard.py"])
def test_every_error_is_sound_python_in_one_place(file):
    source = (ROOT / "laplace_metric" / file).read_bytes()
    found = places(source)
    assert len(found) > 100
    for place in found:
        for edit in place.edits:
            changed = edit.applied(source)
            ast.parse(changed)
            assert changed != source
