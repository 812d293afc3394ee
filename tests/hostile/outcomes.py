"""How a call ended: its class, and the place of a crash."""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import numpy as np
import torch

from laplace_metric.errors import LaplaceMetricError, UndefinedMetricWarning

ROOT = Path(__file__).resolve().parents[2]
RIGHT, NAMED, BOUNDARY = "right result", "named error", "TypeError at the boundary"
USER, CRASH, NON_FINITE = "raised by the user's own code", "unnamed crash", "silent non-finite"
WRONG, ENDLESS = "wrong result", "endless"
CLASSES = (RIGHT, NAMED, BOUNDARY, USER, CRASH, NON_FINITE, WRONG, ENDLESS)
UNKNOWN = "no_such"
"""A keyword that nothing takes; a TypeError that names it names the argument."""
BAD = (CRASH, NON_FINITE, WRONG, ENDLESS)

PACKAGES = ("laplace_metric", "baselines")
USER_CODE = (
    "torch/nn/modules/",
    "torch/jit/",
    "torch/nn/parallel/",
    "torch/optim/",
    "torch/utils/data/",
)
RUNS_USER_CODE = {
    "laplace_metric/models/_call_model.py:call_model",
    "laplace_metric/models/_precomputed.py:forward",
    "laplace_metric/training.py:descend",
    "baselines/base/parts.py:forward",
}
"""Where the package runs the model or the optimizer of a user, with the user's data; a module of
torch that raises anywhere else was called by the package, so that the error is the package's."""
NAN_BY_CONTRACT = {"bin_confidence", "bin_accuracy", "per_query"}
"""Fields whose documentation says when they are NaN."""
PASSED_THROUGH = (*("distributions.", "evaluation.bootstrap_", "models.Call", "models.Pooled"),)
"""Operations that document that NaN and infinity of their arguments pass through."""
INFINITE_BY_CONTRACT = {
    *("concentration", "cap", "low", "conformal_quantile", "first_match", "thresholds"),
    "distributions.vmf_concentration",
}
"""Fields whose documentation says when they are infinite."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """``kind`` is one of ``CLASSES``; ``place`` names what is to be mended."""

    kind: str
    place: str = ""
    detail: str = ""
    line: int = 0


class Endless(BaseException):
    """The time of one call is over."""


def of_error(error: BaseException) -> Outcome:
    """The class of what was raised."""
    if isinstance(error, Endless):
        place, line = _place(error.__traceback__)
        return Outcome(ENDLESS, place, line=line)
    text = f"{type(error).__name__}: {error}"[:300]
    if isinstance(error, LaplaceMetricError):
        return Outcome(NAMED, type(error).__name__, text)
    if isinstance(error, TypeError) and f"unexpected keyword argument '{UNKNOWN}'" in str(error):
        return Outcome(BOUNDARY, "the call itself", text)
    frames = list(_frames(error.__traceback__))
    inside = [i for i, (frame, _) in enumerate(frames) if _package_path(frame)]
    if not inside:
        named = isinstance(error, TypeError)
        return Outcome(BOUNDARY if named else CRASH, "the call itself", text)
    place, line = _place(error.__traceback__)
    if any(_is_user(frame, place) for frame, _ in frames[inside[-1] + 1 :]):
        return Outcome(USER, "", text)
    return Outcome(CRASH, f"{place} {type(error).__name__}", text, line)


def of_result(name: str, result: Any, warned: list[Any], passed_on: bool = False) -> Outcome:
    """Right, unless there is NaN or infinity in it.

    ``passed_on``: an argument held some already, or a variance below zero.
    """
    undefined = any(issubclass(w.category, UndefinedMetricWarning) for w in warned)
    for path, value, field in leaves(result, field=name):
        if field in NAN_BY_CONTRACT or undefined:
            continue
        if passed_on and name.startswith(PASSED_THROUGH):
            continue
        bad = value.isnan() if field in INFINITE_BY_CONTRACT else ~value.isfinite()
        if bool(bad.any()):
            return Outcome(NON_FINITE, f"{name} -> {path or 'result'}")
    return Outcome(RIGHT)


def leaves(value: Any, path: str = "", field: str = "", depth: int = 0) -> Iterator[Any]:
    """(path, floating tensor, name of the field) of everything in a result."""
    if depth > 6:
        return
    if isinstance(value, bool) or value is None:
        return
    if isinstance(value, torch.Tensor):
        if value.is_floating_point() and value.layout == torch.strided and not value.is_meta:
            yield path, value.detach().double(), field
    elif isinstance(value, np.ndarray) and value.dtype.kind == "f":
        yield path, torch.from_numpy(value.astype(np.float64)), field
    elif isinstance(value, (float, np.floating)):
        yield path, torch.tensor(float(value), dtype=torch.float64), field
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from leaves(part, f"{path}.{key}", str(key), depth + 1)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from leaves(part, path, field, depth + 1)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for item in dataclasses.fields(value):
            part = getattr(value, item.name, None)
            yield from leaves(part, f"{path}.{item.name}", item.name, depth + 1)


def differs(result: Any, plain: Any) -> bool:
    """Whether two results differ by more than rounding."""
    ours, theirs = ([leaf[1] for leaf in leaves(r)] for r in (result, plain))
    if len(ours) != len(theirs):
        return True
    for a, b in zip(ours, theirs, strict=True):
        close = a.shape == b.shape and torch.allclose(a, b, rtol=1e-2, atol=1e-4, equal_nan=True)
        if not close:
            return True
    return False


def _frames(trace: TracebackType | None) -> Iterator[tuple[FrameType, int]]:
    return traceback.walk_tb(trace)


def _package_path(frame: FrameType) -> str | None:
    path = Path(frame.f_code.co_filename)
    if not path.is_relative_to(ROOT):
        return None
    relative = path.relative_to(ROOT)
    return str(relative) if relative.parts[0] in PACKAGES else None


def _is_user(frame: FrameType, place: str) -> bool:
    """Whether that code is a user's: below ``place``, the last of ours."""
    path = frame.f_code.co_filename
    of_torch = any(part in path for part in USER_CODE)
    return "tests/hostile" in path or (of_torch and place in RUNS_USER_CODE)


def _place(trace: TracebackType | None) -> tuple[str, int]:
    last = ("the call itself", 0)
    for frame, line in _frames(trace):
        if path := _package_path(frame):
            last = f"{path}:{frame.f_code.co_name}", line
    return last
