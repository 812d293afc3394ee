"""Array annotations are checked while the tests run: every call that returns kept its own shapes.

``pytest -p tests.array_checks`` imports the package through a hook that wraps each function with a
jaxtyping annotation. After a call has returned, arguments and result are compared with their
annotations by beartype, with one meaning a call for every dimension's name. A call that raises is
left alone: what it says about bad input is tested elsewhere. Users never pay for any of this.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
import typing
from collections.abc import Callable
from functools import cache, wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType
from typing import Any

from beartype.door import is_bearable
from jaxtyping import jaxtyped

PACKAGES = ("laplace_metric", "baselines")
ARRAYS = ("Float[", "Int[", "Bool[", "Num[", "Shaped[", "UInt8[", "Complex[", "Int64[", "Float64[")
HOOK = "__check_arrays__"


class ArrayError(AssertionError):
    """An argument or a result does not have the shape or dtype of its annotation."""


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, whose arrays are compared with their annotations once it has returned."""
    signature = inspect.signature(function)

    @cache
    def hints() -> dict[str, Any]:
        found = typing.get_type_hints(function)
        written = function.__annotations__
        return {n: h for n, h in found.items() if any(a in str(written[n]) for a in ARRAYS)}

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        with jaxtyped("context"):
            for name, hint in hints().items():
                value = result if name == "return" else bound.arguments[name]
                if not is_bearable(value, hint):
                    raise ArrayError(
                        f"{function.__qualname__}: {name} is {_shown(value)}, annotated {hint}"
                    )
        return result

    return call


def _shown(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return repr(value)[:200] if shape is None else f"{value.dtype} {tuple(shape)}"


class _Wrap(ast.NodeTransformer):
    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.generic_visit(node)
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        written = [a.annotation for a in arguments] + [node.returns]
        if any(a is not None and any(n in ast.unparse(a) for n in ARRAYS) for a in written):
            node.decorator_list.append(ast.Name(HOOK, ast.Load()))
        return node


class _Loader(SourceFileLoader):
    def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> CodeType:  # type: ignore[override]
        tree = ast.fix_missing_locations(_Wrap().visit(ast.parse(data, path)))
        return compile(tree, path, "exec", dont_inherit=True, optimize=_optimize)

    def get_code(self, fullname: str) -> CodeType:  # no cached byte code, which knows no hook
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


class _Finder(MetaPathFinder):
    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname.split(".")[0] not in PACKAGES:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


def install() -> None:
    """Check every module that is imported from now on."""
    early = [m for m in sys.modules if m.split(".")[0] in PACKAGES]
    if early:
        raise RuntimeError(f"imported before the hook: {early[:3]}")
    setattr(builtins, HOOK, checked)
    sys.meta_path.insert(0, _Finder())


install()
