"""Places of a source file that can be wrong, and how: edits of its text, found by its syntax tree.

Left alone: annotations, decorators, docstrings and other text, what is raised, warned of or logged,
``if TYPE_CHECKING``, sizes of tiles (which change no number), and names with two underscores.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

COMPARED = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}
OTHER_COMPARISONS = {
    "<": ("<=", ">="),
    "<=": ("<", ">"),
    ">": (">=", "<="),
    ">=": (">", "<"),
    "==": ("!=",),
    "!=": ("==",),
}
COMPUTED = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.BitAnd: "&",
    ast.BitOr: "|",
}
OTHER_OPERATORS = {
    "+": "-",
    "-": "+",
    "*": "/",
    "/": "*",
    "//": "*",
    "%": "//",
    "**": "*",
    "&": "|",
    "|": "&",
}
OPPOSITES = {
    **{"min": "max", "amin": "amax", "argmin": "argmax", "minimum": "maximum", "any": "all"},
    **{"nanmin": "nanmax", "floor": "ceil", "clamp_min": "clamp_max"},
}
OPPOSITES |= {b: a for a, b in OPPOSITES.items()}
SYMMETRIC = {
    *OPPOSITES,
    *("isinstance", "issubclass", "getattr", "hasattr", "isclose", "allclose", "equal", "zip"),
    *("map", "filter"),
    *("add", "mul", "multiply", "dot", "cast", "array_equal", "logical_and", "logical_or"),
}
"""Calls whose two arguments can change places without a difference, or with an error at once."""
LOGGED = {"debug", "info", "warning", "log", "exception"}
WARNED = {"warn"}
UNSEEN_KEYWORDS = {
    *("progress", "stacklevel", "category", "strict", "desc", "description", "message", "device"),
    *("help", "metavar", "encoding", "non_blocking", "pin_memory", "unit"),
}
"""Keywords that say how something is shown or where it runs: no result depends on them."""
TILE = re.compile(r"(?:^|_)(?:BYTES|BLOCK|CHUNK|CELLS|TILE|STRIP|ROWS|ONCE|BATCH)$")
AXES = {"axis", "dim"}
NEGLIGIBLE = 1e-4
"""Numbers below it only keep others from zero: twice as much is no error that a test could see."""


@dataclass(frozen=True)
class Edit:
    """One error: `new` stands for the bytes from `start` to `end`."""

    start: int
    end: int
    new: str
    what: str

    def applied(self, source: bytes) -> bytes:
        """Return the source with this error."""
        return source[: self.start] + self.new.encode() + source[self.end :]


@dataclass(frozen=True)
class Place:
    """What can be wrong at one node: a draw takes one of the `edits`."""

    line: int
    edits: tuple[Edit, ...]
    run: tuple[int, int]
    """First and last line of the statement; a test that runs one of them may notice.

    What runs when a file is imported (constants, defaults of arguments) has the lines of the
    function, class or file that it is for.
    """


def places(source: bytes) -> list[Place]:
    """Return all places of a file, from top to bottom."""
    found = _Finder(source)
    found.statements(ast.parse(source).body)
    return sorted(found.places, key=lambda place: (place.line, place.edits[0].start))


class _Finder:
    def __init__(self, source: bytes) -> None:
        self.source, self.places = source, list[Place]()
        lines = source.splitlines(keepends=True)
        self._starts = [0]
        for line in lines:
            self._starts.append(self._starts[-1] + len(line))
        self._whole = (1, len(lines))
        self._run, self._around, self._in_function = self._whole, self._whole, False

    # text

    def _start(self, node: ast.AST) -> int:
        return self._starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]

    def _end(self, node: ast.AST) -> int:
        return self._starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]

    def _text(self, node: ast.AST) -> str:
        text = self.source[self._start(node) : self._end(node)].decode()
        whole = (ast.Name, ast.Constant, ast.Call, ast.Attribute, ast.Subscript, ast.Tuple)
        return text if isinstance(node, whole) else f"({text})"

    def _add(self, node: ast.AST, edits: list[Edit]) -> None:
        if edits:
            self.places.append(Place(node.lineno, tuple(edits), self._run))  # type: ignore[attr-defined]

    def _instead(self, node: ast.AST, new: str, what: str) -> Edit:
        return Edit(self._start(node), self._end(node), new, what)

    def _between(self, left: ast.AST, right: ast.AST, old: str, new: str) -> Edit:
        """Edit the operator `old` between operands, where else are brackets, space and comments."""
        begin, end = self._end(left), self._start(right)
        gap = re.sub(rb"#[^\n]*", lambda m: b" " * len(m[0]), self.source[begin:end])
        at = begin + gap.index(old.encode())
        return Edit(at, at + len(old), new, f"{old} becomes {new}")

    # statements

    def statements(self, nodes: list[ast.stmt]) -> None:
        for node in nodes:
            self._statement(node)

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            self._function(node)
        elif isinstance(node, ast.ClassDef):
            self._within((node.lineno, _last(node)), node.body, in_function=False)
        elif not _is_left_alone(node):
            before = self._run
            self._run = _lines(node) if self._in_function else self._around
            self._errors_of(node)
            self._run = before

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        body = (node.body[0].lineno, _last(node))
        before, self._run = self._run, body
        for default in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
            self._expression(default)
        self._run = before
        self._within(body, node.body, in_function=True)

    def _within(self, lines: tuple[int, int], body: list[ast.stmt], *, in_function: bool) -> None:
        before = self._around, self._in_function
        self._around, self._in_function = lines, in_function or self._in_function
        self.statements(body)
        self._around, self._in_function = before

    def _errors_of(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Raise):
            self._add(node, [self._instead(node, "pass", "nothing is raised")])
            return
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            name = _name_of(node.value.func)
            if name in LOGGED:
                return
            self._add(node, [self._instead(node, "pass", f"{name} is not called")])
        if isinstance(node, ast.AugAssign):
            self._augmented(node)
        if isinstance(node, ast.If) and not node.orelse and _leaves(node.body[-1]):
            self._add(node.test, [self._instead(node.test, "False", "the way out is never taken")])
        for _, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.stmt):
                    self._statement(child)
                elif isinstance(child, (ast.ExceptHandler, ast.match_case)):
                    self.statements(child.body)
                elif isinstance(child, ast.expr) and not _is_annotation(node, child):
                    self._expression(child)
                elif isinstance(child, ast.withitem):
                    self._expression(child.context_expr)

    def _augmented(self, node: ast.AugAssign) -> None:
        old = COMPUTED.get(type(node.op))
        if old is not None:
            swapped = self._between(node.target, node.value, f"{old}=", f"{OTHER_OPERATORS[old]}=")
            self._add(node, [swapped, self._instead(node, "pass", "the update is left out")])

    # expressions

    def _expression(self, node: ast.AST) -> None:
        if isinstance(node, (ast.JoinedStr, ast.Lambda)):
            if isinstance(node, ast.Lambda):
                self._expression(node.body)
            return
        if isinstance(node, ast.Call) and _name_of(node.func) in LOGGED | WARNED:
            return
        if _is_number(node):
            self._add(node, list(self._numbers(node)))
            return
        edits = getattr(self, f"_of_{type(node).__name__.lower()}", lambda _: ())(node)
        self._add(node.target if isinstance(node, ast.comprehension) else node, list(edits))
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.keyword):
                self._keyword(child)
            else:
                self._expression(child)

    def _numbers(self, node: ast.AST) -> Iterator[Edit]:
        value = ast.literal_eval(node)  # type: ignore[arg-type]
        for other in _other_numbers(value):
            yield self._instead(node, repr(other), f"{value!r} becomes {other!r}")

    def _keyword(self, node: ast.keyword) -> None:
        if node.arg in AXES and _is_number(node.value):
            value = ast.literal_eval(node.value)
            other = {0: 1, 1: 0}.get(value, 0)
            what = f"{node.arg} {value} becomes {other}"
            self._add(node, [self._instead(node.value, str(other), what)])
        else:
            self._expression(node.value)

    def _of_compare(self, node: ast.Compare) -> Iterator[Edit]:
        operands = [node.left, *node.comparators]
        for left, op, right in zip(operands[:-1], node.ops, operands[1:], strict=True):
            old = COMPARED.get(type(op), "")
            for new in OTHER_COMPARISONS.get(old, ()):
                yield self._between(left, right, old, new)

    def _of_binop(self, node: ast.BinOp) -> Iterator[Edit]:
        old = COMPUTED.get(type(node.op))
        if (
            old is None
            or _is_text(node.left)
            or _is_text(node.right)
            or (old in "|&" and not self._in_function)
        ):
            return
        yield self._between(node.left, node.right, old, OTHER_OPERATORS[old])
        yield self._instead(node, self._text(node.left), f"{old} and what follows are left out")
        if old in "+*&|":
            yield self._instead(node, self._text(node.right), f"what precedes {old} is left out")

    def _of_boolop(self, node: ast.BoolOp) -> Iterator[Edit]:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        texts = [self._text(value) for value in node.values]
        yield self._instead(node, f"({f' {new} '.join(texts)})", f"{old} becomes {new}")
        for i, text in enumerate(texts):
            rest = f" {old} ".join(texts[:i] + texts[i + 1 :])
            yield self._instead(node, f"({rest})", f"{text} is left out")

    def _of_unaryop(self, node: ast.UnaryOp) -> Iterator[Edit]:
        sign = {ast.USub: "-", ast.Not: "not", ast.Invert: "~"}.get(type(node.op))
        if sign is not None:
            yield self._instead(node, self._text(node.operand), f"{sign} is left out")

    def _of_ifexp(self, node: ast.IfExp) -> Iterator[Edit]:
        yield self._instead(node, self._text(node.body), "the other case is never taken")
        yield self._instead(node, self._text(node.orelse), "the other case is always taken")

    def _of_comprehension(self, node: ast.comprehension) -> Iterator[Edit]:
        for test in node.ifs:
            yield self._instead(test, "True", "nothing is left out")

    def _of_slice(self, node: ast.Slice) -> Iterator[Edit]:
        for bound in (node.lower, node.upper):
            if bound is not None and not _is_number(bound):
                for sign in "+-":
                    new = f"{self._text(bound)} {sign} 1"
                    yield self._instead(bound, new, "a slice is off by one")

    def _of_call(self, node: ast.Call) -> Iterator[Edit]:
        name = _name_of(node.func)
        if name in OPPOSITES:
            at, new = self._end(node.func) - len(name), OPPOSITES[name]
            yield Edit(at, at + len(name), new, f"{name} becomes {new}")
        if len(node.args) == 2 and not node.keywords and name not in SYMMETRIC:
            first, second = node.args
            texts = self._text(first), self._text(second)
            starred = any(isinstance(x, ast.Starred) for x in node.args)
            if texts[0] != texts[1] and not starred:
                gap = self.source[self._end(first) : self._start(second)].decode()
                new = f"{texts[1]}{gap}{texts[0]}"
                at = (self._start(first), self._end(second))
                yield Edit(*at, new, f"arguments of {name} change places")
        if not name[:1].isupper():  # a class needs most of its arguments
            for keyword in node.keywords:
                if keyword.arg is not None and keyword.arg not in UNSEEN_KEYWORDS | AXES:
                    yield self._without(keyword)

    def _without(self, node: ast.keyword) -> Edit:
        """Edit that leaves a keyword argument out, and the comma after or before it."""
        start, end = self._start(node), self._end(node)
        after = re.match(rb"\s*,\s*", self.source[end:])
        if after:
            end += after.end()
        else:
            before = re.search(rb",\s*\Z", self.source[:start])
            start = before.start() if before else start
        return Edit(start, end, "", f"{node.arg}= is left out")


def _is_text(node: ast.expr) -> bool:
    """Return whether `node` is written as text or a sequence, which operators only join."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (str, bytes))
    return isinstance(node, (ast.JoinedStr, ast.List, ast.Tuple))


def _other_numbers(value: complex) -> tuple[complex, ...]:
    if isinstance(value, bool):
        return (not value,)
    if isinstance(value, int):
        return (value + 1, value - 1) if value else (1,)
    if not isinstance(value, float):
        return ()
    if abs(value) < NEGLIGIBLE:
        return (1000 * value, 0.0) if value else (1.0,)
    return (2 * value, 0.0)


def _is_number(node: ast.AST | None) -> bool:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node = node.operand
        return isinstance(node, ast.Constant) and type(node.value) in (int, float)
    return isinstance(node, ast.Constant) and isinstance(node.value, (int, float))


def _name_of(node: ast.AST) -> str:
    """Return the last part of the name of what is called."""
    return getattr(node, "attr", getattr(node, "id", ""))


def _last(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno


def _lines(node: ast.stmt) -> tuple[int, int]:
    """Return the first and last line of a statement, of an ``if`` or a loop those of its head."""
    body = getattr(node, "body", None) or getattr(node, "cases", None)
    if not body:
        return node.lineno, _last(node)
    first = body[0].pattern.lineno if isinstance(body[0], ast.match_case) else body[0].lineno
    return node.lineno, max(node.lineno, first - 1)


def _leaves(node: ast.stmt) -> bool:
    return isinstance(node, (ast.Raise, ast.Return, ast.Continue))


def _is_annotation(node: ast.stmt, child: ast.expr) -> bool:
    return isinstance(node, ast.AnnAssign) and child is node.annotation


def _is_left_alone(node: ast.stmt) -> bool:
    if isinstance(node, ast.If):
        return _name_of(node.test) == "TYPE_CHECKING"
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = [_name_of(target) for target in targets]
        return any(name.startswith("__") or TILE.search(name) for name in names)
    return isinstance(node, (ast.Assert, ast.Import, ast.ImportFrom))
