"""Every documented parameter has a sentence of its own, and a reader of ``help`` the default."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

PACKAGE = ROOT / "laplace_metric"
COVERED = {
    **{path.name: path for path in sorted(PACKAGE.iterdir())},
    "baselines": ROOT / "baselines",
}
ROOMS = {name: path for name, path in COVERED.items() if path.suffix == ".py" or path.is_dir()}
INTERNAL = ("__init__.py", "__main__.py", "_utils", "embedder.py", "errors.py", "inputs", "io")
"""Files and folders whose functions and classes the others call, not users."""
FRAGMENTS = re.compile(
    r"(Also|And|As|At|Both|By|For|From|Gone|Here|How|If|In|Its|Nobody|None|Nothing|Of|On|Only|Or|"
    r"Since|That|Their|Then|There|These|This|Those|To|What|When|Where|Whether|Which|With)\b"
    r"(?!, the default)"
)
"""First words of a text that does not name what the parameter is."""
SECTION = re.compile(r"^(\w[\w ]*)\n-{3,}\n", re.MULTILINE)
Entry = tuple[list[str], str]


def entries(docstring: str | None, *sections: str) -> Iterator[Entry]:
    """Yield the names and the text of each entry in some sections of a numpy docstring."""
    parts = SECTION.split(inspect.cleandoc(docstring or ""))
    for section, body in zip(parts[1::2], parts[2::2], strict=True):
        if section in sections:
            for entry in re.split(r"\n(?=\S)", body.strip()):
                head, _, text = entry.partition("\n")
                names = re.split(r",\s*", head.partition(" : ")[0])
                yield [name.lstrip("*") for name in names], " ".join(text.split())


def fault_of(text: str) -> str | None:
    """Return what keeps a text from being a sentence about a parameter, or None."""
    if len(text.split()) < 3:
        return "says nothing"
    if found := FRAGMENTS.match(text):
        return f"begins with {found[1]!r}, not with what it is"
    if not re.match(r'[A-Z`"]', text):
        return "begins in the middle of a sentence"
    return None if text.endswith(".") else "does not end"


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("", "nothing"),
        ("Z.", "nothing"),
        ("Of the split.", "what it is"),
        ("Whether to draw.", "what it is"),
        ("tau of the posterior.", "sentence"),
        ("Number of draws", "end"),
    ],
)
def test_a_text_that_is_no_sentence_is_found(text, ends):
    assert fault_of(text).endswith(ends)


def test_a_text_that_names_what_it_is_passes():
    assert fault_of("Number of draws, at least 1.") is None
    assert fault_of("Show a progress bar. Default: True.") is None


def documented(path: Path) -> Iterator[tuple[str, str | None]]:
    """Yield the name and the docstring of every class and function below a path."""
    for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                yield f"{file.relative_to(ROOT)}:{node.lineno} {node.name}", ast.get_docstring(node)


@pytest.mark.parametrize("room", ROOMS)
def test_every_documented_parameter_has_a_sentence(room):
    faults = [
        f"{place}: {', '.join(names)} {fault}"
        for place, docstring in documented(ROOMS[room])
        for names, text in entries(docstring, "Parameters", "Attributes")
        if (fault := fault_of(text))
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("room", ROOMS)
def test_no_docstring_begins_with_a_fragment(room):
    faults = [
        f"{place}: {docstring.splitlines()[0]}"
        for place, docstring in documented(ROOMS[room])
        if docstring and FRAGMENTS.match(docstring)
    ]
    assert not faults, "\n".join(faults)


def exported(room: str) -> Iterator[tuple[str, Any]]:
    """Yield the functions and classes that a module shows to users, by their names."""
    package = "baselines" if room == "baselines" else f"laplace_metric.{room.removesuffix('.py')}"
    module = importlib.import_module(package)
    for name in getattr(module, "__all__", vars(module)):
        value = getattr(module, name)
        here = getattr(value, "__module__", "").startswith(package)
        if callable(value) and here and not name.startswith("_"):
            yield name, value


def methods_of(kind: type) -> dict[str, Any]:
    """Return what a class defines or inherits from a class of these packages."""
    ours = ("laplace_metric", "baselines")
    bases = [base for base in kind.__mro__ if base.__module__.partition(".")[0] in ours]
    return {name: value for base in reversed(bases) for name, value in vars(base).items()}


def callables(room: str) -> Iterator[tuple[str, Callable[..., Any], list[str | None]]]:
    """Yield what users call, with the docstrings that document its parameters."""
    for name, value in exported(room):
        if not inspect.isclass(value):
            yield name, value, [value.__doc__]
            continue
        yield name, value, [base.__doc__ for base in value.__mro__]
        for method, attribute in methods_of(value).items():
            function = getattr(attribute, "__func__", attribute)
            if inspect.isfunction(function) and not method.startswith("_") and function.__doc__:
                yield f"{name}.{method}", function, [function.__doc__]


def parameters_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters that a caller passes."""
    found = inspect.signature(function).parameters
    return {name: p for name, p in found.items() if name not in ("self", "cls", "args", "kwargs")}


PUBLIC = [room for room in ROOMS if room not in INTERNAL]


@pytest.mark.parametrize("room", [room for room in PUBLIC if room != "baselines"])
def test_every_parameter_of_a_public_callable_is_documented(room):
    """A callable of one parameter may say it in its first sentence."""
    missing = [
        f"{name}: {parameter}"
        for name, function, docstrings in callables(room)
        if len(parameters := parameters_of(function)) > 1
        for parameter in parameters.keys() - documented_names(docstrings)
    ]
    assert not missing, "\n".join(sorted(missing))


def documented_names(docstrings: list[str | None]) -> set[str]:
    """Return the names of all parameters that some docstrings describe."""
    every = (entries(docstring, "Parameters", "Attributes") for docstring in docstrings)
    return {name for found in every for names, _ in found for name in names}


@pytest.mark.parametrize("room", PUBLIC)
def test_every_default_is_stated_as_it_is(room):
    faults = []
    for name, function, docstrings in callables(room):
        parameters = parameters_of(function)
        for names, text in entries(docstrings[0], "Parameters"):
            defaults = [parameters[n].default for n in names if n in parameters]
            if any(value is not inspect.Parameter.empty for value in defaults):
                faults += [f"{name}: {', '.join(names)}: {fault_of_default(text, defaults)}"]
    faults = [fault for fault in faults if not fault.endswith(": None")]
    assert not faults, "\n".join(faults)


def fault_of_default(text: str, defaults: list[Any]) -> str | None:
    """Return what is wrong with the default that a text states, or None."""
    if "default" not in text.lower():
        return "states no default"
    stated = re.search(r"Default: (.+?)(?:[;:,] |\.(?: |$))", text)
    try:
        values = [ast.literal_eval(value) for value in stated[1].split(" and ")] if stated else []
    except (SyntaxError, ValueError):  # in words
        return None
    wrong = len(values) == len(defaults) and values != defaults
    return f"states {values}, not {defaults}" if wrong else None


def test_a_default_that_is_missing_or_wrong_is_found():
    assert fault_of_default("Number of draws.", [4]) == "states no default"
    assert fault_of_default("Number of draws. Default: 5.", [4]) == "states [5], not [4]"
    assert fault_of_default("Sizes of both. Default: 20 and 512.", [20, 512]) is None
    assert fault_of_default("Number of draws. Default: 4; more are slower.", [4]) is None
