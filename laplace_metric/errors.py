"""Every error and warning of the package. Each names the argument, what was given, what to do."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

OURS = ("laplace_metric", "torch")
"""Packages whose lines a warning does not point to."""


def callers_line() -> int:
    """Return the ``stacklevel`` at which a warning points to the caller of the package."""
    frame: FrameType | None = sys._getframe(1)
    level = 1
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in OURS:
        frame, level = frame.f_back, level + 1
    return level


class LaplaceMetricError(Exception):
    """Base of all errors raised on purpose by this package; they travel between processes."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (type(self), self.args, vars(self))


def _again(
    kind: type[LaplaceMetricError], args: tuple[Any, ...], attributes: dict[str, Any]
) -> LaplaceMetricError:
    """The same error, of which the message is kept and not what it was made of."""
    error = kind.__new__(kind, *args)
    vars(error).update(attributes)
    return error


class InputError(LaplaceMetricError, ValueError):
    """An argument has a wrong shape, type, range or a non-finite value."""


class UnknownNameError(InputError):
    """A name is not one of the choices; the message lists the choices."""

    def __init__(self, argument: str, value: object, choices: tuple[str, ...]) -> None:
        listed = ", ".join(repr(choice) for choice in choices)
        shape = getattr(value, "shape", None)  # of an array or tensor, which may be long
        given = f"={value!r}" if shape is None else f" is a {type(value).__name__} {list(shape)}"
        known = " is not known" if shape is None else ", not a name"
        super().__init__(f"{argument}{given}{known}. Choose one of: {listed}.")


class RowError(InputError, IndexError):
    """A batch has no such row. It is an ``IndexError``, by which Python ends an iteration."""


class CallError(InputError, TypeError):
    """An argument stands where the function has none; the message says which name it takes."""


class LabelError(InputError):
    """Labels are missing, of the wrong length or type, or hold a single class."""


class NonFiniteError(InputError):
    """NaN or infinity where a finite number is needed; the message says where."""


class CollapseError(LaplaceMetricError):
    """Embeddings that are trained have become all alike, or their variances vanish or explode."""


class EmptyLoaderError(InputError):
    """A loader yielded no batch."""


class HeadError(LaplaceMetricError):
    """The head cannot be found, or what follows it is neither identity nor l2 normalisation."""


class MemoryLimitError(InputError):
    """A structure would not fit the memory; the message gives the bytes and what does fit."""


class MissingPackageError(LaplaceMetricError, ImportError):
    """Optional packages are not installed; the message says how to get them."""

    def __init__(self, package: str | Sequence[str], needed_for: str, install: str) -> None:
        names = [package] if isinstance(package, str) else package
        listed = " and ".join(filter(None, [", ".join(map(repr, names[:-1])), repr(names[-1])]))
        what = f"package {listed}, which is" if len(names) == 1 else f"packages {listed}, which are"
        super().__init__(f"{needed_for} needs the {what} not installed: {install}.")


class ExportError(LaplaceMetricError):
    """A model cannot be written as one graph; the message says what stands in the way."""


class DtypeError(InputError):
    """Inputs and model disagree about the floating-point type."""


class WeightsChangedError(LaplaceMetricError):
    """The model no longer has the weights of the fit, in its head or before it."""


class NotFittedError(LaplaceMetricError, AttributeError):
    """A quantity is not there: before ``fit`` or ``calibrate``, or not stored by this fit."""


class FileFormatError(LaplaceMetricError):
    """A file is damaged, not ours, of a newer version, or belongs to another head."""


class WriteError(LaplaceMetricError, OSError):
    """Something cannot be written, such as on a full disk; what was there before is still there."""


class LaplaceMetricWarning(UserWarning):
    """Base of all warnings of this package."""


class DegenerateCurvatureWarning(LaplaceMetricWarning):
    """The curvature carries no information: the posterior is (nearly) the prior."""


class NegativeCurvatureWarning(LaplaceMetricWarning):
    """Much of the curvature was negative and counts by its size: a ranking, not a posterior."""


class PriorAtEdgeWarning(LaplaceMetricWarning):
    """A tuned prior precision lies at the edge of the range that was searched."""


class LimitWarning(LaplaceMetricWarning):
    """A fit is too large for some of its numbers; the message says which, and what to do."""


class LogitScaleWarning(LaplaceMetricWarning):
    """A factor of cosines is so small that it may be the logarithm of one."""


class UndefinedMetricWarning(LaplaceMetricWarning):
    """A metric is undefined on these data and returns NaN."""


class ShardError(LaplaceMetricError):
    """A process of a fit over several failed; the message names its rank and its error."""


class UnreachableAlphaWarning(LaplaceMetricWarning):
    """Too few queries were held out for a conformal test to reject at this level."""


class ScoresWarning(LaplaceMetricWarning):
    """Hits without a judgement are left out, or scores point away from the relevant hits."""


class FewQueriesWarning(LaplaceMetricWarning):
    """Too few queries calibrate: for the match probability, or for the precision asked for."""


class FittedQueriesWarning(LaplaceMetricWarning):
    """Queries that calibrate or evaluate an index are not new to it, or not independent."""


class UnfamiliarQueriesWarning(LaplaceMetricWarning):
    """More queries of a batch are unknown than the calibration explains."""


class DependentQueriesWarning(FittedQueriesWarning):
    """Queries or items depend on each other and count as independent: near-copies, or groups."""


class DistanceScaleWarning(LaplaceMetricWarning):
    """Distances of an engine look like squares, or are of another scale than those before."""


class StaleCalibrationWarning(LaplaceMetricWarning):
    """An index has changed since its match probability was calibrated."""


class UncheckedModelWarning(LaplaceMetricWarning):
    """A posterior of vectors is put on a model, and nothing shows that it made the vectors."""


class WideDrawsWarning(LaplaceMetricWarning):
    """Embeddings are so uncertain that draws, or expected distances, are mostly noise."""
