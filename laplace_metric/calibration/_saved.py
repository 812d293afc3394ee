"""A calibration as one file of numbers, which is read without torch, and as a part of an index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from laplace_metric._utils.validation import as_path, refuse_reloaded
from laplace_metric.calibration._calibration import Calibration
from laplace_metric.calibration._calibrators import CALIBRATORS
from laplace_metric.calibration._features import FEATURE_SETS, FEATURES
from laplace_metric.calibration._label_posterior import LabelPosterior
from laplace_metric.calibration._label_sets import HeldOutLabels
from laplace_metric.calibration._logistic_score import Score
from laplace_metric.calibration._match_probability import MatchProbability
from laplace_metric.calibration._saved_calibrator import calibrator_of
from laplace_metric.errors import FileFormatError, InputError
from laplace_metric.io import Fields, Kind, Part, SavedFile, checked_array, write

CALIBRATION = Kind("calibration", "a saved calibration", 6)
COUNTS = ("k", "depth", "n_items")
PER_QUERY = ("probability", "match", "known", "first_match", "statistics", "p_value", "grid")
PER_ANSWER = ("label_probability", "right")
PER_FEATURE = ("weights", "low", "cap")
PER_LABEL = ("clustering_codes", "clustering_scores", "codes", "scores")
Arrays = Mapping[str, npt.NDArray[Any]]


def write_calibration(calibration: Calibration, path: str | Path) -> None:
    """Write one file: weights, knots, held-out statistics. ``read_calibration`` reads it.

    Parameters
    ----------
    calibration : Calibration
        Calibration that ``index.calibrate`` returned.
    path : path
        Name of a safetensors file, such as "calibration.safetensors".

    Raises
    ------
    InputError
        For anything but a calibration, and if ``path`` is a folder.
    WriteError
        If it cannot be written; an old file is kept.

    Examples
    --------
    >>> import tempfile
    >>> import torch
    >>> from laplace_metric import LaplaceEmbedder
    >>> g = torch.Generator().manual_seed(0)
    >>> y = torch.arange(400) % 4
    >>> x = torch.nn.functional.one_hot(y, 4) + 0.4 * torch.randn(400, 4, generator=g)
    >>> embedder = LaplaceEmbedder.from_embeddings(x[:100], y[:100])
    >>> index = embedder.index(x[100:200], y[100:200], progress=False)
    >>> calibration = index.calibrate(x[200:300], y[200:300])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_calibration(calibration, f"{folder}/calibration.safetensors")
    ...     again = read_calibration(f"{folder}/calibration.safetensors")
    >>> np.array_equal(again.probability, calibration.probability)
    True
    """
    if not isinstance(calibration, Calibration):
        refuse_reloaded("calibration", calibration)
        raise InputError(f"calibration is a {type(calibration).__name__}: pass index.calibration.")
    write(as_path("path", path), calibration_part(calibration))


def read_calibration(path: str | Path) -> Calibration:
    """Read the file of ``write_calibration``.

    Raises
    ------
    FileFormatError
        For a damaged file, or one of another program or a newer version.
    """
    saved = SavedFile(as_path("path", path), torch=False)
    with saved.checked():
        part = saved.part(CALIBRATION)
        return calibration_of(part.content, part.arrays)


def calibration_part(calibration: Calibration) -> Part:
    """Return a calibration as a part of a file."""
    matcher, score = calibration.matcher, calibration.matcher.score
    content: dict[str, Any] = {name: getattr(calibration, name) for name in COUNTS}
    content |= {"features": matcher.feature_set, "calibrator": matcher.calibrator.kind}
    content |= {"offset": score.offset, "own_items": calibration.own_items}
    content |= {"losses": {name: list(loss) for name, loss in matcher.losses.items()}}
    arrays = {name: getattr(calibration, name) for name in PER_QUERY}
    arrays |= {"group": calibration.group} if len(calibration.group) else {}
    arrays |= {name: getattr(score, name) for name in PER_FEATURE}
    arrays |= {"calibrator": matcher.calibrator.numbers}
    if calibration.labeller is not None and calibration.labels is not None:
        arrays |= {name: getattr(calibration, name) for name in PER_ANSWER}
        arrays |= {"answer": calibration.answer} if len(calibration.answer) else {}
        arrays |= {"labeller": calibration.labeller.numbers}
        arrays |= {f"label_{name}": getattr(calibration.labels, name) for name in PER_LABEL}
        content["classes"] = calibration.labels.classes.tolist()
    return Part(CALIBRATION, content, {name: np.asarray(array) for name, array in arrays.items()})


def calibration_of(content: dict[str, Any], arrays: Arrays) -> Calibration:
    """Restore what ``calibration_part`` returned.

    Raises
    ------
    FileFormatError
        If a value is missing, of another type or shape, or out of its range.
    """
    fields, stored = Fields(content, "calibration"), _Arrays(arrays)
    k = fields.whole("k", least=1)
    depth, n_items = fields.whole("depth", least=1), fields.whole("n_items", least=1)
    known = stored.flags("known", [None])
    n, m = len(known), len(stored.numbers("statistics", [None, 3]))
    features = [len(FEATURES)]
    losses = fields.inner("losses")
    matcher = MatchProbability(
        fields.text("features", tuple(FEATURE_SETS)),
        Score(
            stored.numbers("weights", features),
            stored.numbers("low", features, infinite=True),
            stored.numbers("cap", features, infinite=True),
            fields.number("offset"),
        ),
        calibrator_of(fields.text("calibrator", tuple(CALIBRATORS)), arrays.get("calibrator")),
        {name: _pair(losses, name) for name in losses.content},
    )
    learnt = Calibration(
        matcher,
        None,
        k,
        depth,
        n_items,
        probability=stored.shares("probability", [n, k]),
        match=stored.flags("match", [n, k]),
        known=known,
        first_match=stored.numbers("first_match", [n], most=0.0, infinite=True),
        statistics=stored.numbers("statistics", [m, 3]),
        p_value=stored.shares("p_value", [n]),
        grid=stored.shares("grid", [None, 1 + ("labeller" in arrays)]),
        own_items=fields.flag("own_items"),
        group=stored.optional("group", n),
    )
    if "labeller" not in arrays:  # calibrated with matches
        return learnt
    return replace(
        learnt,
        labeller=LabelPosterior(stored.numbers("labeller", [4])),
        labels=_labels_of(fields, stored),
        label_probability=stored.shares("label_probability", [n]),
        right=stored.flags("right", [n]),
        answer=stored.optional("answer", n),
    )


def _pair(losses: Fields, name: str) -> tuple[float, float]:
    first, second = losses.items(name, float)
    return first, second


def _labels_of(fields: Fields, stored: _Arrays) -> HeldOutLabels:
    listed = fields.content.get("classes")
    kind = str if isinstance(listed, list) and listed and isinstance(listed[0], str) else int
    names = fields.items("classes", kind)
    if not names or names != sorted(set(names)):
        raise FileFormatError("calibration.classes are not the sorted classes of its labels")
    classes = np.array(names, dtype=object if kind is str else np.int64)
    numbers: dict[str, Any] = {}
    for half in ("clustering_", ""):
        codes = checked_array(
            f"calibration/label_{half}codes",
            stored.arrays.get(f"label_{half}codes"),
            [None],
            dtype="int64",
            least=0,
            most=len(classes) - 1,
        )
        scores = stored.numbers(f"label_{half}scores", [len(codes)], infinite=True)
        numbers |= {f"{half}codes": codes, f"{half}scores": scores}
    return HeldOutLabels(classes, **numbers)


class _Arrays:
    """Arrays of a calibration, each checked as it is read."""

    def __init__(self, arrays: Arrays) -> None:
        self.arrays = arrays

    def optional(self, name: str, n: int) -> Any:
        """Return numbers [n]; none where they are empty, and in older files."""
        if not np.size(self.arrays.get(name, ())):
            return np.empty(0)
        return self.numbers(name, [n])

    def numbers(
        self,
        name: str,
        shape: Sequence[int | None],
        *,
        most: float = np.inf,
        infinite: bool = False,
    ) -> Any:
        array = self.arrays.get(name)
        return checked_array(
            f"calibration/{name}", array, shape, dtype="float64", most=most, infinite=infinite
        )

    def shares(self, name: str, shape: Sequence[int | None]) -> Any:
        """Return numbers from 0 to 1."""
        array = self.arrays.get(name)
        return checked_array(
            f"calibration/{name}", array, shape, dtype="float64", least=0.0, most=1.0
        )

    def flags(self, name: str, shape: Sequence[int | None]) -> Any:
        """Return true or false of each."""
        return checked_array(f"calibration/{name}", self.arrays.get(name), shape, dtype="bool")
