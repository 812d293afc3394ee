"""Files whose hashes are right and whose numbers nothing of this package can have saved.

Every floating array of every kind of file in turn has one entry of NaN, infinity or 1e30, or lacks
its last row. Loading names the array, or the value is one that the format allows.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from laplace_metric import Guard, Index, LaplaceEmbedder, LaplaceEnsemble, Monitor
from laplace_metric import io as files
from laplace_metric.calibration import (
    Rule,
    ScoreCalibration,
    calibrate_scores,
    read_calibration,
    write_calibration,
)
from laplace_metric.curvature._statistics import Statistics
from laplace_metric.curvature.by_class import ClassSums
from laplace_metric.errors import FileFormatError
from laplace_metric.image_text import ImageTextEmbedder, ImageTextPairs
from laplace_metric.models import Precomputed
from laplace_metric.search import HNSW, IVF
from tests.saved_files import parts_of, rewrite

pytestmark = pytest.mark.filterwarnings("ignore::laplace_metric.errors.LaplaceMetricWarning")
CLASSES, WIDTH = 4, 6
NUMBERS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf, "1e30": 1e30}

FINITE = "any finite number is one that a fit may have"
ALLOWED: dict[str, tuple[set[str], str]] = {
    # kind and name of an array -> what it may hold, and why
    r".*(class_model|near_far)\..*root": ({"1e30"}, FINITE),
    r".*class_model\.(weights|bias|prior_precision|temperature)": ({"1e30"}, FINITE),
    r".*near_far\.(length|centre|scale|strength|weights)": ({"1e30"}, FINITE),
    r".*near_far\.points": ({"short"}, "a fit keeps some of its points"),
    r".*[/.](eigenvalues|standard_error|prior_weights)": ({"1e30"}, FINITE),
    r".*/(trace|epistemic|basis_inputs|engine\.centroids)": ({"1e30"}, FINITE),
    r"(index|index, (ivf|hnsw)|guard)/mean": ({"1e30"}, "embeddings of any length"),
    r".*(labeller|score|calibrator|model|first|behind)\.(numbers|weights)": ({"1e30"}, FINITE),
    r"index, predictive/vectors": ({"1e30"}, FINITE),
    r".*[/.]statistics": ({"1e30"}, FINITE),
    r".*/heads\..*": ({"1e30"}, FINITE),
    r".*matcher\.score\.low": ({"-inf", "1e30"}, "a feature without a lower bound, or any bound"),
    r".*matcher\.score\.cap": ({"inf", "1e30"}, "a feature without an upper bound, or any bound"),
    r".*(first|behind)\.score\.low": ({"-inf"}, "a feature without a lower bound"),
    r".*(first|behind)\.score\.cap": ({"inf"}, "a feature without an upper bound"),
    r".*labels\.(clustering_)?scores": ({"-inf"}, "no neighbour has the label of a query"),
    r".*queries\.grid|calibration, halves/grid": ({"short"}, "any number of queries"),
    r"image and text/controls": ({"short"}, "any number of random pairs"),
}


def points(n: int, seed: int) -> tuple[Tensor, Tensor]:
    centres = 2 * torch.randn(CLASSES, WIDTH, generator=torch.Generator().manual_seed(9))
    y = torch.arange(n) % CLASSES
    return centres[y] + torch.randn(n, WIDTH, generator=torch.Generator().manual_seed(seed)), y


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(WIDTH, 5), nn.ReLU(), nn.Linear(5, 3))


def embedder(**settings: Any) -> LaplaceEmbedder:
    return LaplaceEmbedder.from_embeddings(*points(60, 0), **settings)


def calibrated(path: Path, distance: str = "euclidean", **options: Any) -> Callable[[Path], Any]:
    made, (x, y) = embedder(distance=distance), points(60, 1)
    index = made.index(x, [f"class {label}" for label in y.tolist()], progress=False, **options)
    x, y = points(80, 2)
    index.calibrate(x, [f"class {label}" for label in y.tolist()], k=3, depth=5)
    index.save(path)
    return lambda path: Index.load(path, made)


def posterior(path: Path, structure: str, **settings: Any) -> Callable[[Path], Any]:
    model, reference = network(0), 24 if structure == "diag" else None
    made = LaplaceEmbedder(model, structure=structure, **settings).fit(
        *points(60, 0), reference=reference, seed=0, progress=False
    )
    made.save(path)
    return lambda path: LaplaceEmbedder.load(path, model)


def ensemble(path: Path) -> Callable[[Path], Any]:
    models = [network(seed) for seed in range(2)]
    members = [LaplaceEmbedder(m).fit(*points(60, 0), progress=False) for m in models]
    LaplaceEnsemble(members).save(path)
    return lambda path: LaplaceEnsemble.load(path, models)


def guard(path: Path) -> Callable[[Path], Any]:
    made = Guard(*points(100, 0))
    made.calibrate(*points(120, 1))
    made.save(path)
    return Guard.load


def monitor(path: Path) -> Callable[[Path], Any]:
    values = torch.randn(100, generator=torch.Generator().manual_seed(0))
    made = Monitor({"uncertainty": values[:40]}, window=30, seed=0)
    made.update({"uncertainty": values[40:]})
    made.update({"uncertainty": values[40:50] + 9})
    made.save(path)
    return Monitor.load


def calibration(path: Path, **options: Any) -> Callable[[Path], Any]:
    made, (x, y) = embedder(), points(60, 1)
    index = made.index(x, y, progress=False)
    write_calibration(index.calibrate(*points(80, 2), **options), path)
    return read_calibration


def calibration_of_matches(path: Path) -> Callable[[Path], Any]:
    made, (x, y), (queries, own) = embedder(), points(60, 1), points(80, 2)
    matches = [(y == label).nonzero()[:, 0].tolist() for label in own]
    index = made.index(x, progress=False)
    write_calibration(index.calibrate(queries, matches=matches), path)
    return read_calibration


def scores(n: int = 200) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    relevant = rng.random((n, 3)) < 0.6
    return np.sort(relevant + rng.normal(0, 0.5, (n, 3)), 1)[:, ::-1].copy(), relevant


def score_calibration(path: Path) -> Callable[[Path], Any]:
    calibrate_scores(*scores()).save(path)
    return ScoreCalibration.load


def rule(path: Path) -> Callable[[Path], Any]:
    values, relevant = scores(300)
    calibrate_scores(values, relevant).guarantee(precision=0.5).save(path)
    return Rule.load


def statistics(path: Path) -> Callable[[Path], Any]:
    x, y = points(60, 0)
    Statistics("a task", ClassSums.of(y, x)).save(path)
    return Statistics.load


def image_text(path: Path) -> Callable[[Path], Any]:
    x, y = points(60, 0)
    pairs = ImageTextPairs(x, torch.eye(CLASSES, 5), torch.stack([torch.arange(60), y], 1))
    made = ImageTextEmbedder(Precomputed(), Precomputed(), dim=4)
    made.fit(pairs, epochs=2, seed=0, progress=False)
    made.fit_posterior(pairs, progress=False)
    made.calibrate_inclusion(pairs, seed=0)
    made.save(path)
    return lambda path: ImageTextEmbedder.load(path, Precomputed(), Precomputed())


KINDS: dict[str, Callable[[Path], Callable[[Path], Any]]] = {
    "index": calibrated,
    "index, directions": partial(calibrated, distance="arccos"),
    "index, predictive": partial(calibrated, distance="arccos", rank_by="predictive"),
    "index, ivf": partial(calibrated, engine=IVF(lists=3, probes=2)),
    "index, hnsw": partial(calibrated, engine=HNSW(links=4)),
    "posterior, kron": partial(posterior, structure="kron"),
    "posterior, full": partial(posterior, structure="full"),
    "posterior, diag": partial(posterior, structure="diag"),
    "posterior, layerwise": partial(posterior, structure="kron", prior_precision="layerwise"),
    "ensemble": ensemble,
    "guard": guard,
    "monitor": monitor,
    "calibration": calibration,
    "calibration, halves": partial(calibration, cross_fit=0),
    "calibration, matches": calibration_of_matches,
    "scores": score_calibration,
    "rule": rule,
    "image and text": image_text,
}


def allowed(name: str) -> set[str]:
    found: set[str] = set()
    for pattern, (values, _) in ALLOWED.items():
        if re.fullmatch(pattern, name):
            found |= values
    return found


def names_array(message: str, name: str) -> bool:
    """True if a message has the array's name, or what a value of several is called."""
    last = next(part for part in reversed(name.split(".")) if not part.isdigit())
    return last in message


@pytest.mark.parametrize("kind", KINDS)
def test_no_number_of_a_file_is_taken_on_trust(kind, tmp_path):
    path, forged = tmp_path / "saved", tmp_path / "forged"
    load = KINDS[kind](path)
    load(path)
    parts = parts_of(path)
    wrong, n_arrays = [], 0
    for part in parts.values():
        for name, whole in list(part.arrays.items()):
            if not whole.is_floating_point() or not whole.numel():
                continue
            n_arrays += 1
            for what in [*NUMBERS, "short"] if whole.ndim else NUMBERS:
                changed = whole.clone() if what in NUMBERS else whole[:-1].clone()
                if what in NUMBERS:
                    changed.view(-1)[changed.numel() // 2] = NUMBERS[what]
                part.arrays[name] = changed
                files.write(forged, parts)
                try:
                    load(forged)
                except FileFormatError as error:
                    # of two arrays whose lengths disagree, either may be the one that is wrong
                    named = names_array(str(error), name)
                    named |= what == "short" and bool(
                        re.search("has shape|engine.sizes", str(error))
                    )
                    if what in allowed(f"{kind}/{name}"):
                        continue
                    if not named or str(forged) not in str(error):
                        wrong.append(f"{name} of {what}: {error}")
                    continue
                if what not in allowed(f"{kind}/{name}"):
                    wrong.append(f"{name} of {what} loads")
            part.arrays[name] = whole
    assert n_arrays
    assert not wrong, "\n".join(["", *wrong])


def first_match_beyond_the_known(arrays: dict[str, Tensor]) -> None:
    arrays["calibration.known"][0] = False
    arrays["calibration.first_match"][0] = -0.5


def crossed_bounds(arrays: dict[str, Tensor]) -> None:
    arrays["calibration.matcher.score.low"].fill_(1)
    arrays["calibration.matcher.score.cap"].fill_(0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.update(ids=a["ids"].double()), "ids is float64, not int64"),
        (lambda a: a.update(ids=a["ids"][:, None]), r"ids has shape \[60, 1\], not \['any'\]"),
        (lambda a: a.update({"labels.ends": a["labels.ends"].double()}), "labels.ends is float64"),
        (lambda a: a.pop("labels.ends"), "labels.ends is missing"),
        (lambda a: a["labels.ends"][-1:].sub_(1), "labels.ends do not cut the 420 bytes"),
        (lambda a: a["labels.ends"][3:4].fill_(999), "labels.ends do not cut the 420 bytes"),
        (first_match_beyond_the_known, "first_match is not finite exactly where"),
        (crossed_bounds, "score/low is above score/cap"),
        (lambda a: a["calibration.matcher.score.cap"].fill_(-math.inf), "cap holds -inf"),
        (lambda a: a["calibration.answer"][:1].fill_(CLASSES), "answer holds places beyond 4"),
        (lambda a: a["calibration.answer"][:1].fill_(-2), "answer holds -2"),
        (lambda a: a["class_model.variance"][:1].fill_(-1), "class_model.variance holds -1"),
        (lambda a: a["class_model.temperature"].zero_(), "class_model.temperature holds 0"),
        (lambda a: a.update({"class_model.mean": a["mean"][0]}), "class_model.mean is float32"),
    ],
)
def test_values_of_an_index_that_do_not_go_together(change, message, tmp_path):
    path = tmp_path / "index"
    load = calibrated(path)
    rewrite(path, "index", lambda _, arrays: change(arrays))
    with pytest.raises(FileFormatError, match=message):
        load(path)


def content_of(part: str, *names: str, **changes: Any) -> Callable[[dict[str, Any]], None]:
    """Change values of an object in the content of a part."""

    def change(parts: dict[str, Any]) -> None:
        content = parts[part].content
        for name in names:
            content = content[name]
        content.update(changes)

    return change


def array_of(part: str, name: str, value: float) -> Callable[[dict[str, Any]], None]:
    return lambda parts: parts[part].arrays[name][-1:].fill_(value)


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("index, predictive", content_of("index", "predictive", share=1), "predictive.share is 1"),
        (
            "index, predictive",
            content_of("index", "predictive", share=-1),
            "predictive.share is -1",
        ),
        (
            "index, predictive",
            content_of("index", "predictive", gain=[0.5, 2.0]),
            "predictive.gain.1 is 2.0, not a number from 0 to 1",
        ),
        ("index, predictive", content_of("index", "predictive", gain=[0.5]), "gain has 1 entries"),
        ("index", content_of("index", found=1.5), "index.found is 1.5"),
        ("index", content_of("index", next_id=2**63 + 1), "index.next_id is 9223372036854775809"),
        ("index", content_of("index", changes=None), "index.changes is None"),
        (
            "posterior, layerwise",
            array_of("posterior", "prior_weights", 0),
            "posterior/prior_weights holds 0",
        ),
        ("posterior, kron", content_of("posterior", "draws", recall=1.5), "draws.recall is 1.5"),
        ("posterior, kron", content_of("posterior", "draws", spread=-1), "draws.spread is -1"),
        ("image and text", array_of("heads", "controls", -1e9), "controls are not in ascending"),
        ("image and text", content_of("heads", "inclusion", auroc=2), "inclusion.auroc is 2"),
        ("image and text", content_of("heads", "inclusion", slope="x"), "inclusion.slope is 'x'"),
        ("statistics", array_of("statistics", "counts", -1), "statistics/counts holds -1"),
        ("statistics", array_of("statistics", "sums", math.nan), "statistics/sums holds nan"),
    ],
)
def test_numbers_that_no_fit_has(kind, change, message, tmp_path):
    path = tmp_path / "saved"
    load = statistics(path) if kind == "statistics" else KINDS[kind](path)
    load(path)
    parts = parts_of(path)
    change(parts)
    files.write(path, parts)
    with pytest.raises(FileFormatError, match=message):
        load(path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("scale", 0), ("strength", 0), ("log_share", 0.1), ("channel", -0.1), ("channel", 1.1)),
        *(("weights", -1), ("mean", 1.1), ("points", 2.1), ("class_means", -2.1), ("length", 0)),
    ],
)
def test_ranges_of_what_a_fit_says_of_its_points(name, value, tmp_path):
    path = tmp_path / "posterior"
    load = posterior(path, "kron")
    rewrite(
        path, "posterior", lambda _, arrays: arrays[f"near_far.{name}"].view(-1)[-1:].fill_(value)
    )
    with pytest.raises(FileFormatError, match=f"posterior/near_far.{name} holds"):
        load(path)
