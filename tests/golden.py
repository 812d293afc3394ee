"""Golden outputs: the sha256 of every number of some fifty settings, to hold a redesign to the bit.

``python -m tests.golden --write FILE`` records them, ``python -m tests.golden FILE`` compares and
names each setting that differs. Sums are rounded differently by other processors and versions of
torch, so a record holds on the machine that wrote it; it is made before a redesign and compared
after each step.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import platform
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from laplace_metric import LaplaceEmbedder
from laplace_metric.errors import NotFittedError

Numbers = dict[str, Any]
SETTINGS: dict[str, Callable[[], Numbers]] = {}


def setting(name: str) -> Callable[[Callable[[], Numbers]], Callable[[], Numbers]]:
    def add(function: Callable[[], Numbers]) -> Callable[[], Numbers]:
        SETTINGS[name] = function
        return function

    return add


def digest(value: Any) -> str:
    """sha256 of dtype, shape and bytes of an array, or of the repr of anything else."""
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray) and value.dtype != object:
        head = f"{value.dtype.str}{value.shape}".encode()
        return hashlib.sha256(head + np.ascontiguousarray(value).tobytes()).hexdigest()[:16]
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def network(seed: int = 0, widths: tuple[int, int, int] = (8, 16, 4)) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(widths[0], widths[1]), nn.Tanh(), nn.Linear(widths[1], widths[2])
        )


def points(
    n: int = 240, classes: int = 6, seed: int = 1, spread: float = 0.9
) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, 8, generator=torch.Generator().manual_seed(99))
    labels = torch.arange(n) % classes
    return centres[labels] + spread * torch.randn(n, 8, generator=g), labels


def loader(n: int = 240, size: int = 50) -> list[tuple[Tensor, Tensor]]:
    x, y = points(n)
    return list(zip(x.split(size), y.split(size), strict=True))


def _or_none(embedding: Any, name: str) -> Any:
    """The number, or None where this fit does not have it."""
    try:
        return getattr(embedding, name)
    except NotFittedError:
        return None


def numbers_of(embedder: LaplaceEmbedder) -> Numbers:
    """What an embedder says of 30 new points, and its posterior."""
    x, _ = points(30, seed=2)
    embedding = embedder(x)
    fitted = embedder.fitted_
    return {
        "theta": fitted.posterior.mean,
        "mean": embedding.mean,
        "variance": embedding.variance,
        "uncertainty": embedding.uncertainty,
        **{name: _or_none(embedding, name) for name in ("epistemic", "near", "far", "ambiguity")},
        "concentration": embedding.concentration if fitted.spherical else None,
        "samples": embedding.sample(3, generator=0),
        "heads": embedder.sample(x, 2, generator=0),
    }


def _combination(distance: str, hessian: str, structure: str) -> None:
    @setting(f"fit {distance} {hessian} {structure}")
    def run() -> Numbers:
        embedder = LaplaceEmbedder(
            network(), distance=distance, hessian=hessian, structure=structure
        )
        return numbers_of(embedder.fit(loader(), progress=False))


for _parts in product(
    ("arccos", "euclidean"), ("fixed", "positives", "full"), ("diag", "kron", "full")
):
    _combination(*_parts)


def _variant(name: str, **settings: Any) -> None:
    @setting(f"fit {name}")
    def run() -> Numbers:
        return numbers_of(LaplaceEmbedder(network(), **settings).fit(loader(), progress=False))


_variant("append", head="append")
_variant("margin", hessian="full", margin=0.4, structure="diag")
_variant("margin euclidean", distance="euclidean", hessian="full", margin=1.5, structure="kron")
_variant("batch pairs", hessian="full", pairs="batch", structure="diag")
_variant("clip, prior, n_effective", positivity="clip", prior_precision=7.0, n_effective=500.0)
_variant("torch.func", backend="torch.func", structure="diag")
_variant("backpack", backend="backpack", structure="diag")


@setting("fit reference points")
def _reference() -> Numbers:
    embedder = LaplaceEmbedder(network(), hessian="full", margin=0.4, structure="diag")
    return numbers_of(embedder.fit(loader(), progress=False, reference=60, generator=3))


@setting("fit miner")
def _miner() -> Numbers:
    from pytorch_metric_learning.miners import MultiSimilarityMiner

    embedder = LaplaceEmbedder(network(), hessian="full", pairs=MultiSimilarityMiner())
    return numbers_of(embedder.fit(loader(), progress=False))


@setting("fit head of three layers")
def _deep_head() -> Numbers:
    model = network()
    return numbers_of(LaplaceEmbedder(model, head=model[-2:]).fit(loader(), progress=False))


@setting("fit convolution head, normalised")
def _pixels() -> Numbers:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = network(3, (8, 16, 16)), nn.Conv2d(16, 4, 1)
            with torch.no_grad():
                g = torch.Generator().manual_seed(5)
                for p in self.head.parameters():
                    p.copy_(0.3 * torch.randn(p.shape, generator=g))

        def forward(self, x: Tensor) -> Tensor:
            z = self.head(self.body(x)[:, :, None, None].expand(-1, -1, 2, 2)).mean((2, 3))
            return nn.functional.normalize(z, dim=-1)

    return numbers_of(LaplaceEmbedder(Model()).fit(loader(), progress=False))


@setting("fit float64, checkpoint, memory on disk")
def _runtime() -> Numbers:
    with tempfile.TemporaryDirectory() as folder:
        embedder = LaplaceEmbedder(network(), hessian="full", structure="kron").fit(
            loader(),
            progress=False,
            precision=torch.float64,
            checkpoint_dir=folder,
            memory_bytes=2_000,
        )
        return numbers_of(embedder)


@setting("from_embeddings, tuned prior, distances, save and load")
def _vectors() -> Numbers:
    x, y = points()
    embedder = LaplaceEmbedder.from_embeddings(x, y, hessian="positives", distance="euclidean")
    embedder.optimize_prior_precision(progress=False)
    a, b = points(20, seed=4)[0], points(20, seed=5)[0]
    distance = embedder.distance(a, b)
    with tempfile.TemporaryDirectory() as folder:
        embedder.save(Path(folder) / "posterior")
        again = numbers_of(LaplaceEmbedder.load(Path(folder) / "posterior"))
    return {
        "prior": embedder.settings.prior_precision,
        "distance": distance.mean,
        "distance variance": distance.variance,
        **again,
    }


@setting("distances on the sphere")
def _angles() -> Numbers:
    embedder = LaplaceEmbedder(network()).fit(loader(), progress=False)
    a, b = points(20, seed=4)[0], points(20, seed=5)[0]
    shared, own = embedder.distance(a, b), embedder.distance(a, b, shared_weights=False)
    return {"mean": shared.mean, "var": shared.variance, "own": own.mean, "own var": own.variance}


def searched(index: Any, k: int = 7) -> Numbers:
    """A search and all that a calibrated index says."""
    queries, truth = points(60, seed=6)
    found = index.search(queries, k=k)
    said = {
        "positions": found.positions,
        "distance": found.distance,
        "sd": found.distance_sd,
        "epistemic": found.epistemic,
    }
    if index.calibration is None:
        return said
    rule = index.calibration.threshold_for(precision=0.6)
    answer = index.classify(queries, threshold=rule)
    labels, items = index.label_sets(queries, alpha=0.2), index.retrieval_sets(queries, alpha=0.2)
    report = index.evaluate(queries, truth)
    return said | {
        "p": found.match_probability,
        "p value": found.p_value,
        "unknown": found.unknown,
        "label": found.label,
        "label p": found.label_probability,
        "threshold": rule.value,
        "answers": answer.labels.tolist(),
        "answered": answer.answered,
        "sets": labels.sizes,
        "item sets": items.sizes,
        "recall": report.recall_at_1,
    }


def _embedder() -> LaplaceEmbedder:
    return LaplaceEmbedder(network()).fit(loader(), progress=False)


def _index(**how: Any) -> Any:
    x, y = points(300, seed=7)
    return _embedder().index(x, y, progress=False, **how)


def _calibrated(**how: Any) -> Any:
    index = _index(**how)
    index.calibrate(*points(400, seed=8))
    return index


@setting("index flat")
def _flat() -> Numbers:
    return searched(_index())


@setting("index hnsw")
def _hnsw() -> Numbers:
    return searched(_index(engine="hnsw"))


@setting("index ivf")
def _ivf() -> Numbers:
    return searched(_index(engine="ivf"))


@setting("index shared ranking, calibrated")
def _shared() -> Numbers:
    return searched(_calibrated(rank_by="shared"))


@setting("index compact")
def _compact() -> Numbers:
    return searched(_calibrated(compact=True))


@setting("index calibrated, suspicious labels, saved")
def _saved() -> Numbers:
    index = _calibrated()
    with tempfile.TemporaryDirectory() as folder:
        index.save(Path(folder) / "index")
        again = type(index).load(Path(folder) / "index", _embedder())
    return searched(again) | {"suspicious": index.suspicious_labels(20).ids}


@setting("index changed")
def _changed() -> Numbers:
    index = _calibrated()
    index.add(*points(10, seed=9))
    index.remove([0, 5, 7])
    return searched(index)


@setting("index calibrated by matches")
def _matches() -> Numbers:
    x, _ = points(300, seed=7)
    index = _embedder().index(x, progress=False)
    queries, labels = points(400, seed=8)
    index.calibrate(queries, matches=[list(range(int(c), 300, 6)) for c in labels])
    found = index.search(queries[:50], k=5)
    return {"p": found.match_probability, "p value": found.p_value}


@setting("calibration applied to plain arrays")
def _portable() -> Numbers:
    x, y = points(300, seed=7)
    index = _embedder().index(x, y, progress=False)
    calibration = index.calibrate(*points(400, seed=8), portable=True)
    found = index.search(points(60, seed=6)[0], k=20)
    verdict = calibration.apply(
        found.distance.numpy(),
        y[found.positions].numpy(),
        epistemic=found.epistemic.numpy(),
        uncertainty=found.uncertainty.numpy(),
    )
    return {"p": verdict.match_probability, "unknown": verdict.unknown, "label": verdict.label}


@setting("exported graph")
def _exported() -> Numbers:
    import onnxruntime

    x, _ = points(30, seed=2)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        path = Path(folder) / "model.onnx"
        _embedder().export(path, example=x)
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        names = [o.name for o in session.get_outputs()]
        values = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    return dict(zip(names, values, strict=True))


@setting("online")
def _online() -> Numbers:
    from pytorch_metric_learning.losses import ContrastiveLoss

    from laplace_metric import OnlineLaplace

    online = OnlineLaplace(network(), decay=0.9, samples=2)
    embedder = online.fit(loader(), ContrastiveLoss(), epochs=3, progress=False, generator=0)
    return numbers_of(embedder) | {"losses": online.losses_, "variances": online.variances_}


@setting("online, kron, printed recursion")
def _online_paper() -> Numbers:
    from pytorch_metric_learning.losses import ContrastiveLoss

    from laplace_metric import OnlineLaplace

    online = OnlineLaplace(
        network(), structure="kron", recursion="paper", n_effective="pairs", decay=0.99
    )
    return numbers_of(
        online.fit(loader(), ContrastiveLoss(), epochs=2, progress=False, generator=0)
    )


def _image_text(objective: str) -> None:
    @setting(f"images and texts, {objective}")
    def run() -> Numbers:
        from laplace_metric.image_text import ImageTextEmbedder, ImageTextPairs
        from laplace_metric.models import Precomputed

        images, labels = points(60)
        texts = torch.randn(8, 7, generator=torch.Generator().manual_seed(6))
        rows = torch.arange(60)
        general = torch.stack([rows, 6 + (labels > 2).long()], 1)
        pairs = ImageTextPairs(images, texts, torch.cat([torch.stack([rows, labels], 1), general]))
        embedder = ImageTextEmbedder(Precomputed(), Precomputed(), dim=4, objective=objective)
        embedder.fit(pairs, epochs=4, batch_size=30, progress=False, generator=0)
        image, text = embedder.embed_image(images), embedder.embed_text(texts)
        said: Numbers = {
            "image": image.mean,
            "text": text.mean,
            "similarity": embedder.similarity(image, text),
        }
        if objective in ("prolip", "pcme++"):
            calibration = embedder.calibrate_inclusion(pairs, generator=0)
            said |= {
                "variance": text.variance,
                "epistemic": image.epistemic,
                "logit": embedder.match_logit(image, text),
                "auroc": calibration.auroc,
            }
        index = embedder.index_images(images, progress=False)
        return said | {"found": index.search(texts, k=5).ids}


for _objective in ("prolip", "pcme++", "siglip", "clip"):
    _image_text(_objective)


@setting("monitor")
def _monitor() -> Numbers:
    from laplace_metric import Monitor

    g = torch.Generator().manual_seed(0)
    monitor = Monitor({"epistemic": torch.rand(500, generator=g)}, window=100, generator=0)
    reports = monitor.update({"epistemic": 1.4 * torch.rand(350, generator=g)})
    return {"drifted": [r.drifted for r in reports], "alarms": [a.at for a in monitor.alarms]}


@setting("metrics")
def _metrics() -> Numbers:
    from laplace_metric import evaluation

    g = torch.Generator().manual_seed(0)
    score, right = torch.rand(400, generator=g), torch.rand(400, generator=g) < 0.7
    z, y = points(200)
    return {
        "auroc": evaluation.auroc(score, right),
        "auprc": evaluation.auprc(score, right),
        "r_auroc": evaluation.r_auroc(score, right),
        "fpr": evaluation.fpr_at_tpr(score, right),
        "ece": evaluation.expected_calibration_error(score, right),
        "spearman": evaluation.spearman(score, z[:, 0].repeat(2)),
        "recall": evaluation.recall_at_k(z, y),
        "map": evaluation.map_at_r(z, y),
    }


@setting("command line: fit, index, search")
def _command_line() -> Numbers:
    from laplace_metric.cli import main

    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        for name, (x, y) in {"items": points(400, seed=7), "new": points(20, seed=6)}.items():
            np.savez(here / f"{name}.npz", embeddings=x.numpy(), labels=y.numpy())
        items, out, found = str(here / "items.npz"), str(here / "out"), str(here / "index")
        with contextlib.redirect_stdout(io.StringIO()):
            main(["fit", items, "--output", out, "--quiet"])
            main(
                [
                    "index",
                    items,
                    "--posterior",
                    out,
                    "--cross-fit",
                    "5",
                    "--output",
                    found,
                    "--quiet",
                ]
            )
            table = str(here / "found.csv")
            main(["search", found, str(here / "new.npz"), "--output", table, "--quiet"])
        return {"csv": (here / "found.csv").read_text()}


def measured() -> Iterator[tuple[str, dict[str, str]]]:
    for name, run in SETTINGS.items():
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield name, {key: digest(value) for key, value in run().items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--write", action="store_true", help="record instead of comparing")
    parser.add_argument("--only", default="", help="settings whose name contains this")
    options = parser.parse_args()
    torch.set_num_threads(1)
    machine = {"torch": torch.__version__, "machine": platform.machine()}
    if options.write:
        record = {"made with": machine, "settings": dict(measured())}
        options.file.write_text(json.dumps(record, indent=1) + "\n")
        values = sum(map(len, record["settings"].values()))
        print(f"{len(record['settings'])} settings, {values} values")
        return 0
    before = json.loads(options.file.read_text())["settings"]
    if not options.only and before.keys() != SETTINGS.keys():
        print(f"other settings: {sorted(before.keys() ^ SETTINGS.keys())}")
    different = 0
    for name in [name for name in SETTINGS if options.only not in name]:
        SETTINGS.pop(name)
    for name, values in measured():
        changed = [key for key in values if before.get(name, {}).get(key) != values[key]]
        changed += [key for key in before.get(name, {}) if key not in values]
        if changed:
            different += 1
            print(f"DIFFERENT {name}: {', '.join(changed)}")
    print(f"{different} of {len(SETTINGS)} settings differ")
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main())
