"""Golden outputs: numbers of the public interface, to be compared before and after a change.

``python -m tests.golden OUT.json`` records sha256, shape and dtype of every array, and the arrays
in OUT.npz. ``python -m tests.golden OUT.json --against OLD.json`` records again, prints each
difference with its largest size, and exits with 1 if there is one. ``--only WORD`` runs settings
whose name contains WORD. Bits depend on processor and libraries: a record holds on one machine.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from pytorch_metric_learning.losses import ContrastiveLoss
from torch import Tensor, nn

from baselines.distributions import log_vmf_normalizer, mean_resultant_length
from benchmarks.engine.method import evaluate_method
from benchmarks.engine.statistics import spearman
from laplace_metric import Index, LaplaceEmbedder, OnlineLaplace, datasets, evaluation
from laplace_metric import distributions as spherical
from laplace_metric.calibration import guarantee, read_calibration, write_calibration
from laplace_metric.cli import main as laplace_metric_command
from laplace_metric.errors import NotFittedError
from laplace_metric.image_text import ImageTextEmbedder, ImageTextPairs
from laplace_metric.models import Precomputed
from laplace_metric.monitor import Monitor
from laplace_metric.search import HNSW
from laplace_metric.training import train_embedder

Numbers = Mapping[str, Any]
SETTINGS: dict[str, Callable[[], Numbers]] = {}
QUIET = {"progress": False}


def setting(name: str, *arguments: Any) -> Callable[[Callable[..., Numbers]], Any]:
    """Register a function of ``arguments`` that returns named arrays or numbers."""

    def register(function: Callable[..., Numbers]) -> Callable[..., Numbers]:
        SETTINGS[name] = partial(function, *arguments)
        return function

    return register


# ------------------------------------------------------------------------------ data and models


@cache
def digits(split: str = "train") -> Any:
    return datasets.load("digits", split)


def pixels(split: str, first: int, last: int) -> tuple[Tensor, Tensor]:
    """Pixels [n, 64] and labels [n] of some packaged digits."""
    part = digits(split)
    return part.pixels(slice(first, last)).flatten(1), part.labels[first:last]


def batches(first: int = 0, last: int = 300, size: int = 100) -> list[tuple[Tensor, Tensor]]:
    x, y = pixels("train", first, last)
    return list(zip(x.split(size), y.split(size), strict=True))


QUERIES = pixels("test", 0, 40)[0]


def network(*last: nn.Module, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """A trunk with fixed weights to 12 numbers, and a head, by default linear to 5."""
    torch.manual_seed(1)
    head = last or (nn.Linear(12, 5),)
    return nn.Sequential(nn.Linear(64, 12), nn.Tanh(), *head).to(dtype)


def fitted(model: nn.Module | None = None, *, data: Any = None, **settings: Any) -> LaplaceEmbedder:
    """Fit a network to 300 digits; ``settings`` of the constructor."""
    embedder = LaplaceEmbedder(network() if model is None else model, **settings)
    return embedder.fit(batches() if data is None else data, **QUIET)


def picked(value: Any, names: str) -> dict[str, Any]:
    """Attributes of these names; those that a fit has nothing for are left out."""
    numbers = {}
    for name in names.split():
        with suppress(NotFittedError):
            numbers[name] = getattr(value, name)
    return numbers


EMBEDDING = "mean variance uncertainty near far epistemic ambiguity"
DIAGNOSIS = "n_effective_parameters prior_dominated negative_fraction largest median"


def of_embedder(embedder: LaplaceEmbedder, queries: Tensor = QUERIES) -> Numbers:
    """Everything that an embedder returns for some queries."""
    embedding, half = embedder(queries), len(queries) // 2
    together = embedder.distance(queries[:half], queries[half:])
    apart = embedder.distance(queries[:half], queries[half:], shared_weights=False)
    return {
        **picked(embedding, EMBEDDING + " concentration" * embedder.spherical),
        **picked(embedder.diagnose(queries), DIAGNOSIS + " evidence_prior_precision"),
        "sample": embedding.sample(3, 0),
        "joint": embedder.sample(queries, 3, 0),
        "distance": torch.stack([together.mean, together.variance, apart.mean, apart.variance]),
    }


# ---------------------------------------------------------------------------------------- fits


for choice in product(
    ("euclidean", "arccos"), ("full", "positives", "fixed"), ("diag", "kron", "full")
):

    @setting("fit " + " ".join(choice), *choice)
    def _fit(distance: str, hessian: str, structure: str) -> Numbers:
        return of_embedder(fitted(distance=distance, hessian=hessian, structure=structure))


for choice in product(("euclidean", "arccos"), ("diag", "kron", "full")):

    @setting("margin " + " ".join(choice), *choice)
    def _margin(distance: str, structure: str) -> Numbers:
        margin = 0.5 if distance == "arccos" else 1.0
        exact = fitted(distance=distance, structure=structure, margin=margin, hessian="full")
        few = LaplaceEmbedder(network(), distance=distance, structure=structure, margin=margin)
        few.fit(batches(), reference=50, seed=3, **QUIET)
        return {**of_embedder(exact), "by reference": few(QUERIES).variance}


HEADS: dict[str, Callable[[], LaplaceEmbedder]] = {
    "appended": lambda: fitted(head="append"),
    "named": lambda: fitted(network(nn.Linear(12, 5), Normalised()), head="2"),
    "mlp auto": lambda: fitted(mlp(), head=None, structure="full"),
    "mlp slice": lambda: of_slice("auto"),
    "mlp torch.func": lambda: of_slice("torch.func"),
    "mlp backpack": lambda: of_slice("backpack"),
    "linear torch.func": lambda: fitted(backend="torch.func"),
    "linear backpack": lambda: fitted(backend="backpack"),
    "normalised": lambda: fitted(network(nn.Linear(12, 5), Normalised()), distance="euclidean"),
    "float64": lambda: fitted(network(dtype=torch.float64), data=in_float64()),
    "clip": lambda: fitted(positivity="clip", hessian="full"),
    "pairs of a batch": lambda: fitted(pairs="batch"),
    "prior and n": lambda: fitted(prior_precision=7.0, n_effective=50.0),
    "names as labels": lambda: fitted(data=[(x, [f"n{i}" for i in y]) for x, y in batches()]),
}
if find_spec("nnj"):  # it is not on the package index
    HEADS["mlp nnj"] = lambda: of_slice("nnj")


class Normalised(nn.Module):
    """Directions, as a model that l2-normalises returns them."""

    def forward(self, z: Tensor) -> Tensor:
        return nn.functional.normalize(z, dim=-1)


def mlp() -> nn.Sequential:
    return network(nn.Linear(12, 6), nn.Tanh(), nn.Linear(6, 4))


def of_slice(backend: str) -> LaplaceEmbedder:
    model = mlp()
    return fitted(model, head=model[2:], backend=backend)


def in_float64() -> list[tuple[Tensor, Tensor]]:
    return [(x.double(), y) for x, y in batches()]


for name, make in HEADS.items():

    @setting(f"head {name}", name, make)
    def _head(name: str, make: Callable[[], LaplaceEmbedder]) -> Numbers:
        return of_embedder(make(), QUERIES.double() if name == "float64" else QUERIES)


@setting("fit arrays, embed, draw, uncertainties")
def _arrays() -> Numbers:
    embedder = vectors_embedder()
    embedded, labels = embedder.embed(batches(), **QUIET)
    kinds = ("uncertainty", "epistemic", "ambiguity")
    each = {kind: embedder.uncertainties(batches(), kind=kind, **QUIET) for kind in kinds}
    return {
        **of_embedder(embedder),
        "embedded": embedded.variance,
        "labels": labels,
        "draw": embedder.draw(2, 5)(QUERIES),
        **{f"all {kind}": value for kind, value in each.items()},
    }


@setting("fit with little memory, and with a checkpoint")
def _stored() -> Numbers:
    small = LaplaceEmbedder(network(), hessian="full").fit(batches(), memory_bytes=1000, **QUIET)
    with tempfile.TemporaryDirectory() as folder:
        checkpointed = LaplaceEmbedder(network())
        checkpointed.fit(batches(), checkpoint_dir=f"{folder}/fit", **QUIET)
        again = LaplaceEmbedder(network())
        again.fit(batches(), checkpoint_dir=f"{folder}/fit", **QUIET)
    every = {"small": small, "checkpointed": checkpointed, "again": again}
    precise = LaplaceEmbedder(network()).fit(batches(), dtype=torch.float64, **QUIET)
    return {name: e(QUERIES).variance for name, e in (every | {"precise": precise}).items()}


@setting("prior optimisation")
def _prior() -> Numbers:
    def recall(embedding: Any, labels: Tensor) -> float:
        right = evaluation.recall_at_k(embedding.mean, labels).per_query
        return evaluation.r_auroc(embedding.uncertainty, right)

    evidence, validated = fitted(hessian="full"), fitted()
    precision = evidence.tune_prior(**QUIET)
    pair = {"method": "validation", "loader": batches(300, 500), "metric": recall}
    chosen = validated.tune_prior(**pair, tune_n_effective=True, **QUIET)
    after = evidence(QUERIES).variance, validated(QUERIES).variance
    return {"evidence": precision, "chosen": chosen, "by": after[0], "by data": after[1]}


@setting("saved, pretrained and module")
def _saved() -> Numbers:
    embedder = fitted(structure="kron", hessian="full")
    with tempfile.TemporaryDirectory() as folder:
        embedder.save(f"{folder}/posterior")
        loaded = LaplaceEmbedder.load(f"{folder}/posterior", network())
        embedder.save_pretrained(f"{folder}/hub")
        pretrained = LaplaceEmbedder.from_pretrained(f"{folder}/hub", network())
        vectors_embedder().save(f"{folder}/vectors")
        vectors = LaplaceEmbedder.load(f"{folder}/vectors")
    parts = {"loaded": loaded, "pretrained": pretrained, "vectors": vectors}
    numbers = named({name: of_embedder(part) for name, part in parts.items()})
    return {**numbers, **picked(embedder.as_module()(QUERIES), "mean epistemic uncertainty")}


@setting("exported graphs")
def _onnx() -> Numbers:
    numbers = {}
    parts = {"linear": fitted(), "mlp": of_slice("auto"), "vectors": vectors_embedder()}
    with tempfile.TemporaryDirectory() as folder:
        for name, embedder in parts.items():
            graph = embedder.export(f"{folder}/{name}.onnx", example=QUERIES[:2])
            numbers |= run_onnx(name, graph, QUERIES.numpy())
        saved = embedder.export(f"{folder}/graph.pt2", "torch", example=QUERIES[:2])
        outputs = torch.export.load(saved.path).module()(QUERIES)
    return {**numbers, **{f"torch {i}": x for i, x in enumerate(outputs)}}


def run_onnx(name: str, graph: Any, *given: Any) -> dict[str, Any]:
    session = onnxruntime.InferenceSession(str(graph.path))
    values = session.run(None, dict(zip(graph.inputs, given, strict=True)))
    return {f"{name} {output}": x for output, x in zip(graph.outputs, values, strict=True)}


# ------------------------------------------------------------------- index and its calibration


@cache
def vectors_embedder(distance: str = "arccos") -> LaplaceEmbedder:
    return LaplaceEmbedder.from_embeddings(*pixels("train", 0, 400), distance=distance)


def calibrated(distance: str = "arccos", portable: bool = False, **settings: Any) -> Index:
    index = vectors_embedder(distance).index(*pixels("train", 0, 400), **QUIET, **settings)
    index.calibrate(*pixels("test", 0, 300), portable=portable, seed=0)
    return index


RESULT = (
    "ids labels distance distance_sd match_probability label label_probability p_value unknown "
    "ambiguity epistemic uncertainty"
)


def of_rule(rule: Any) -> list[float]:
    return list(picked(rule, "value estimate bound coverage n_tested").values())


def named(parts: Mapping[str, Numbers]) -> Numbers:
    """Several records as one."""
    return {f"{part} {name}": x for part, numbers in parts.items() for name, x in numbers.items()}


LATER = pixels("test", 300, 500)
NOISE = torch.rand(50, 64, generator=torch.Generator().manual_seed(0))
INDEXES: dict[str, Numbers] = {
    "mean": {},
    "expected": {"rank_by": "expected"},
    "shared": {"rank_by": "shared"},
    "compact": {"compact": True},
    "hnsw": {"engine": HNSW(links=8)},
    "euclidean": {"distance": "euclidean"},
}
for name, settings in INDEXES.items():

    @setting(f"index {name}", settings)
    def _index(settings: dict[str, Any]) -> Numbers:
        index = calibrated(**settings)
        with tempfile.TemporaryDirectory() as folder:
            index.save(f"{folder}/index")
            embedder = vectors_embedder(settings.get("distance", "arccos"))
            read = Index.load(f"{folder}/index", embedder).search(QUERIES, k=4)
        found = index.search(torch.cat([QUERIES, NOISE]), k=4)
        rule = index.guarantee(precision=0.8, of="match")
        results = {"found": picked(found, RESULT), "read": picked(read, RESULT)}
        answers = {"threshold": of_rule(rule), "accepted": rule(found).answered}
        return {**named(results), **answers}


@setting("index: answers, sets, evaluation")
def _answers() -> Numbers:
    index = calibrated()
    retrieval, by_label = index.retrieval_sets(LATER[0], 0.2), index.label_sets(LATER[0], 0.2)
    classified = index.ask(LATER[0], index.guarantee(precision=0.8))
    report = index.evaluate(*LATER, ood=NOISE)
    review = index.suspicious_labels(20)
    every = {**report.r_auroc, **report.ausc, **report.ood.auroc, **report.unknown}
    single = "recall_at_1 answers_right ece brier mean_probability"
    recall = index.calibration.guarantee(recall=0.8, of="label", alpha=None)
    return {
        **picked(report, single + " smallest_p_value"),
        **named({"retrieval": picked(retrieval, "positions members")}),
        **named({"labels": picked(by_label, "members score")}),
        **named({"review": picked(review, "ids probability")}),
        "classified": [str(label) for label in classified.label],
        "probability": classified.probability,
        "recall": of_rule(recall),
        "scores": [float(every[k]) for k in sorted(every) if every[k] is not None],
    }


@setting("index: open-set calibration, add, remove, cross-fitted")
def _changes() -> Numbers:
    index = vectors_embedder().index(*pixels("train", 0, 400), **QUIET)
    index.calibrate(*pixels("test", 0, 300), open_set_fraction=0.2, seed=1)
    first = picked(index.search(QUERIES, k=3), RESULT)
    index.add(*pixels("train", 400, 420))
    index.remove([0, 1, 2])
    second = picked(index.search(QUERIES, k=3), RESULT)
    crossed = vectors_embedder().cross_index(*pixels("train", 0, 400), folds=3, **QUIET)
    third = picked(crossed.search(QUERIES, k=3), RESULT)
    return named({"open set": first, "changed": second, "crossed": third})


@setting("index: matches by id, engine's hits, graph of the calibration")
def _portable() -> Numbers:
    index = vectors_embedder().index(*pixels("train", 0, 400), **QUIET)
    queries, labels = pixels("test", 0, 200)
    items = pixels("train", 0, 400)[1]
    index.calibrate(queries, matches=[(items == y).nonzero()[:9, 0] for y in labels], seed=0)
    by_id = index.search(QUERIES, k=5).match_probability
    portable = calibrated(portable=True)
    asked = portable.search(QUERIES, k=20)
    given = asked.distance.double().numpy(), asked.labels.astype(np.int64)
    signs = {"epistemic": asked.epistemic.numpy()}
    with tempfile.TemporaryDirectory() as folder:
        write_calibration(portable.calibration, f"{folder}/calibration.safetensors")
        calibration = read_calibration(f"{folder}/calibration.safetensors")
        graph = calibration.export(f"{folder}/calibration.onnx", alpha=0.05, dtype=torch.float64)
        run = run_onnx("graph", graph, *given, signs["epistemic"].astype(np.float64))
    verdict = calibration.apply(*given, **signs)
    accepted = calibration.guarantee(precision=0.7, of="match")(verdict).answered
    fields = picked(verdict, "match_probability p_value label label_probability unknown")
    return {**run, **fields, "by id": by_id, "accepted": accepted}


# ---------------------------------------------------------------------- everything around them


@setting("thresholds and metrics")
def _metrics() -> Numbers:
    (x, y), score = LATER, LATER[0].sum(1)
    right = evaluation.recall_at_k(x, y).per_query
    lift = evaluation.sparsification(score, right)
    samples = x + 0.1 * torch.randn(4, *x.shape, generator=torch.Generator().manual_seed(0))
    reliability = evaluation.retrieval_calibration(samples, y)
    interval = evaluation.bootstrap_interval(evaluation.r_auroc, score, right, n=50, seed=0)
    probability = torch.sigmoid(score - score.mean())
    chosen = guarantee(probability, probability > torch.linspace(0, 1, 200), precision=0.6)
    scores = score, NOISE.sum(1)
    single = [metric(*scores) for metric in (evaluation.auroc, evaluation.auprc)]
    single += [evaluation.fpr_at_tpr(*scores), evaluation.r_auroc(score, right)]
    single += [spearman(score, x[:, 20]), evaluation.abstention(score, right).area]
    single += [evaluation.expected_calibration_error(probability, right).ece]
    single += [evaluation.map_at_k(x, y).value, evaluation.map_at_r(x, y).value]
    return {
        "single": [float(number) for number in single],
        **picked(interval, "low high"),
        "sparsification": lift.curve,
        "confidence": reliability.confidence,
        "threshold": of_rule(chosen),
        "nearest": evaluation.nearest_neighbours(x, k=3).distances,
    }


@setting("method under the evaluation protocol")
def _protocol() -> Numbers:
    noise = [(NOISE, torch.zeros(50).long())]
    options = {"n_draws": 5, "seed": 0, "n_bootstrap": 20}
    later = [(LATER[0], LATER[1])]
    result = evaluate_method(fitted(), later, {"noise": noise}, **options)
    numbers = {k: v for k, v in result.numbers().items() if "second" not in k}
    return {name: float(value) for name, value in numbers.items() if np.isscalar(value)}


@setting("distributions")
def _distributions() -> Numbers:
    g = torch.Generator().manual_seed(0)
    root = torch.randn(6, 4, 4, generator=g, dtype=torch.float64)
    mean = torch.randn(6, 4, generator=g, dtype=torch.float64)
    dense = spherical.DenseCovariance(root @ root.mT / 10)
    laws = {
        "gaussian": spherical.Gaussian(mean, dense),
        "projected": spherical.ProjectedNormal(mean, dense),
        "diagonal": spherical.ProjectedNormal(mean, spherical.DiagonalCovariance(mean**2)),
    }
    numbers: dict[str, Any] = {}
    for name, law in laws.items():
        numbers |= named({name: picked(law, "mean variance concentration")})
        numbers[f"{name} sample"] = law.sample(3, 0)
    kappa = torch.logspace(-3, 5, 30, dtype=torch.float64)
    length = mean_resultant_length(kappa, 16)
    return {
        **numbers,
        "normalizer": log_vmf_normalizer(kappa, 16),
        "length": length,
        "kappa": spherical.vmf_concentration(length, 16),
        "cap": spherical.cap_angle(kappa, 16, 0.9),
        "cap cosine": spherical.cap_cosine(kappa, 16, 0.9),
    }


for choice in (("average", "diag"), ("paper", "kron"), ("average", "full")):

    @setting("online " + " ".join(choice), *choice)
    def _online(recursion: str, structure: str) -> Numbers:
        model = network()
        online = OnlineLaplace(
            model, recursion=recursion, structure=structure, samples=2, refit=False
        )
        loader = batches(0, 300, 60)
        embedder = online.fit(loader, ContrastiveLoss(), epochs=2, seed=0, **QUIET)
        history = [*online.losses_, *online.variances_, *online.priors_]
        return {**of_embedder(embedder), "history": history, "weights": model[2].weight}


@setting("training loop")
def _training() -> Numbers:
    model = network()
    train_embedder(model, batches(), ContrastiveLoss(), epochs=2, **QUIET)
    return {"weights": model[2].weight, "z": model(QUERIES)}


for objective in ("prolip", "prolip-regions", "siglip"):

    @setting(f"image-text {objective}", objective)
    def _image_text(objective: str) -> Numbers:
        x, y = pixels("train", 0, 240)
        texts = torch.cat([torch.eye(10), torch.ones(2, 10) * torch.tensor([[0.2], [0.4]])])
        rows = torch.arange(240)
        links = torch.cat([torch.stack([rows, y], 1), torch.stack([rows, 10 + y % 2], 1)])
        pairs = ImageTextPairs(x, texts, links)
        embedder = ImageTextEmbedder(Precomputed(), Precomputed(), dim=6, objective=objective)
        embedder.fit(pairs, epochs=3, batch_size=60, seed=0, **QUIET)
        images, words = embedder.embed_image(QUERIES[:12]), embedder.embed_text(texts)
        index = embedder.index_images(x, **QUIET)
        found = index.search(texts, k=4)
        numbers = {
            **named({"image": picked(images, "mean epistemic"), "text": picked(words, "mean")}),
            **picked(found, "ids distance"),
            "similarity": embedder.similarity(images, words),
            "losses": embedder.fitted_.losses,
        }
        if objective != "siglip":
            embedder.calibrate_inclusion(pairs, seed=0)
            included = embedder.includes(words, images)
            numbers |= picked(words, "variance ambiguity")
            numbers |= picked(included, "probability score")
        with tempfile.TemporaryDirectory() as folder:
            embedder.save(f"{folder}/heads")
            loaded = ImageTextEmbedder.load(f"{folder}/heads", Precomputed(), Precomputed())
            return {**numbers, "loaded": loaded.embed_text(texts).mean}


@setting("monitor")
def _monitor() -> Numbers:
    known = vectors_embedder()(pixels("test", 0, 300)[0]).uncertainty
    monitor = Monitor({"u": known}, window=50, seed=0)
    later = vectors_embedder()(torch.cat([LATER[0], NOISE])).uncertainty
    reports = monitor.update({"u": later})
    p_values = [r.shift_tests["u"].p_value for r in reports]
    return {"p": p_values, "evidence": [r.evidence["u"] for r in reports], "n": monitor.n}


@setting("command line")
def _command_line() -> Numbers:
    x, y = pixels("train", 0, 500)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.savez(folder / "items.npz", embeddings=x.numpy(), labels=y.numpy())
        np.save(folder / "queries.npy", QUERIES.numpy())
        common = ["--quiet"]
        names = ("items.npz", "queries.npy", "posterior", "index")
        items, queries, posterior, index = (str(folder / part) for part in names)
        commands = [
            ["fit", items, "--output", posterior, "--holdout", "0.4"],
            ["index", items, "--posterior", posterior, "--output", index],
            ["search", index, queries, "--output", str(folder / "out.csv")],
            ["evaluate", index, items, "--json", str(folder / "report.json")],
            ["embed", queries, "--posterior", posterior, "--output", str(folder / "out.npz")],
        ]
        codes = [laplace_metric_command([*command, *common]) for command in commands]
        table = (folder / "out.csv").read_text().splitlines()
        arrays = dict(np.load(folder / "out.npz"))
        report = flat_numbers(json.loads((folder / "report.json").read_text()))
        return {"codes": codes, "table": table, "report": report, **arrays}


def flat_numbers(content: Any) -> list[float]:
    """All numbers in JSON, by sorted keys."""
    if isinstance(content, dict):
        return [x for key in sorted(content) for x in flat_numbers(content[key])]
    if isinstance(content, list):
        return [x for entry in content for x in flat_numbers(entry)]
    return [float(content)] if isinstance(content, (int, float)) else []


# ------------------------------------------------------------------------- record and compare


def as_array(value: Any) -> np.ndarray[Any, Any]:
    array = value.detach().numpy() if isinstance(value, Tensor) else np.asarray(value)
    return array.astype(str) if array.dtype == object else np.ascontiguousarray(array)


def arrays_of(name: str) -> dict[str, np.ndarray[Any, Any]]:
    """Arrays of one setting; a failure is recorded by its type and message."""
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            numbers = SETTINGS[name]()
    except Exception as error:
        numbers = {"error": f"{type(error).__name__}: {error}"}
        print(f"FAILED {name}: {numbers['error']}")
    return {f"{name} / {part}": as_array(value) for part, value in numbers.items()}


def summary(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    digest = hashlib.sha256(array.tobytes()).hexdigest()
    return {"sha256": digest, "shape": list(array.shape), "dtype": str(array.dtype)}


def difference(old: np.ndarray[Any, Any], new: np.ndarray[Any, Any]) -> str:
    if old.shape != new.shape or old.dtype != new.dtype:
        return f"{old.dtype}{list(old.shape)} -> {new.dtype}{list(new.shape)}"
    if old.dtype.kind not in "fiub":
        return f"{(old != new).sum()} of {old.size} entries"
    gap = np.abs(old.astype(float) - new.astype(float))
    return f"largest difference {np.nanmax(gap):.3g}, largest value {np.nanmax(np.abs(old)):.3g}"


def compare(before: Path, arrays: Mapping[str, np.ndarray[Any, Any]], only: str) -> int:
    """Print what differs from an earlier record; return how much does."""
    old = {k: v for k, v in json.loads(before.read_text()).items() if only in k.split(" / ")[0]}
    stored, different = np.load(before.with_suffix(".npz")), 0
    for name in sorted(old.keys() | arrays.keys()):
        if name not in arrays or name not in old:
            print(f"{'GONE' if name in old else 'NEW '} {name}")
        elif summary(arrays[name]) != old[name]:
            print(f"DIFFERS {name}: {difference(stored[name], arrays[name])}")
        else:
            continue
        different += 1
    print(f"{len(arrays)} arrays, {different} different")
    return different


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    torch.set_num_threads(1)
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for name in (name for name in SETTINGS if given.only in name):
        arrays |= arrays_of(name)
    given.output.write_text(json.dumps({k: summary(v) for k, v in arrays.items()}, indent=1))
    np.savez_compressed(given.output.with_suffix(".npz"), **arrays)
    print(f"{len(arrays)} arrays of {sum(given.only in name for name in SETTINGS)} settings")
    return bool(given.against and compare(given.against, arrays, given.only))


if __name__ == "__main__":
    sys.exit(main())
