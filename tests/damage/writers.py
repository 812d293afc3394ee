"""Everything that writes: how it writes one of two values, and what is read of it afterwards."""

from __future__ import annotations

import contextlib
import hashlib
import io
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from baselines import Mahalanobis
from laplace_metric import Guard, LaplaceEmbedder, OnlineLaplace
from laplace_metric.calibration import Rule, calibrate_scores
from laplace_metric.cli import main
from laplace_metric.cli._gallery import load_gallery
from laplace_metric.cli._image_text import IMAGES, TEXTS, PairsRecipe
from laplace_metric.cli._model_recipe import ModelRecipe
from laplace_metric.cli._options import parser_of
from laplace_metric.cli._reporter import Reporter
from laplace_metric.curvature._statistics import Statistics
from laplace_metric.curvature.by_class import ClassSums
from laplace_metric.distributed import _fit_on_disk
from laplace_metric.errors import LaplaceMetricError
from laplace_metric.hub._pretrained import FILE, NETWORK, network_of
from laplace_metric.image_text import ImageTextEmbedder
from laplace_metric.io import SavedFile, digest, sha256_of
from laplace_metric.models import Precomputed
from laplace_metric.models._disk_rows import DiskRows
from laplace_metric.monitor import Monitor
from laplace_metric.search import HNSW, IVF, Index

VALUE = "value.safetensors"
"""Name of what writers of one file write to a folder."""


@dataclass(frozen=True)
class Writer:
    """Writes value 0 or 1 to a folder; ``read`` names the value that is there.

    Parameters
    ----------
    resumes : bool
        What is there is a part of the work, from which ``read`` goes on in a copy.
    command : bool
        Of the command line: ``write`` raises ``CommandError`` for another code than 0.
    """

    name: str
    write: Callable[[Path, int], None]
    read: Callable[[Path], str]
    resumes: bool = False
    command: bool = False


class CommandError(LaplaceMetricError):
    """A command ended with another code than 0."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code, self.text = code, text


def command(*arguments: object) -> str:
    """Run a command line; what it printed."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([*map(str, arguments), "--quiet"])
    if code:
        raise CommandError(code, err.getvalue().strip())
    return out.getvalue()


def network() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 4))


def points(version: int, n: int = 60) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(version)
    labels = torch.arange(n - 8 * version) % 4
    return torch.randn(len(labels), 5, generator=generator) + labels[:, None], labels


def fitted(version: int, **how: Any) -> LaplaceEmbedder:
    how = {"structure": ("kron", "full")[version], "hessian": "positives", **how}
    fit = {"checkpoint_dir": how.pop("checkpoint_dir", None), "progress": False}
    return LaplaceEmbedder(network(), **how).fit([points(version)], **fit)


def _resaved(load: Callable[[Path], Any]) -> Callable[[Path], str]:
    """The hash of everything that a loaded value would save."""

    def read(path: Path) -> str:
        again = path.parent.with_name(f"{path.parent.name} again")
        load(path).save(again)
        sha256 = sha256_of(again)
        again.unlink()
        return sha256

    return read


def _posterior(embedder: LaplaceEmbedder) -> str:
    embedding, facts = embedder(points(0)[0]), embedder.fitted_
    text = f"{embedder.settings} {facts.n_points} {facts.posterior.n_effective}"
    text += f" {embedder.hessian_.negative_fraction}"
    return digest(text, [embedding.mean, embedding.variance, embedder.hessian_.eigenvalues])


def _found(index: Index) -> str:
    result = index.search(points(0)[0], k=5)
    columns = {name: np.asarray(values).tolist() for name, values in result.columns().items()}
    facts = [columns, index.ids.tolist(), index.rank_by, index.changes]
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def _in_copy(work: Callable[[Path], str]) -> Callable[[Path], str]:
    def read(folder: Path) -> str:
        copy = folder.with_name(f"{folder.name} copy")
        shutil.rmtree(copy, ignore_errors=True)
        if folder.exists():
            shutil.copytree(folder, copy)
        try:
            return work(copy)
        finally:
            shutil.rmtree(copy, ignore_errors=True)

    return read


def _fit_in(folder: Path) -> str:
    return _posterior(fitted(0, checkpoint_dir=folder, hessian="fixed"))


def _train_in(folder: Path) -> str:
    model, generator = network(), torch.Generator().manual_seed(0)
    loss = lambda x, y: (x - y[:, None]).square().mean()  # noqa: E731
    how = {"epochs": 2, "optimizer": torch.optim.Adam(model.parameters()), "progress": False}
    how |= {"checkpoint": folder, "seed": generator}
    x, y = points(0)
    batches = list(zip(x.split(20), y.split(20), strict=True))
    return _posterior(OnlineLaplace(model, decay=0.8).fit(batches, loss, **how))


def _append_in(folder: Path) -> str:
    x, y = points(0)
    rows = DiskRows(folder)
    while len(rows) < len(x):
        part = slice(len(rows), len(rows) + 20)
        rows.append(x[part], y[part])
        rows.commit()
    if not rows.exhausted:
        rows.complete()
    return digest("", [rows.read(column, 0, len(x)) for column in (0, 1)])


def _quick(work: Callable[[Path], str]) -> Callable[[Path], str]:
    """Commit after every batch, not after ten seconds."""

    def run(folder: Path) -> str:
        _fit_on_disk.SECONDS, before = -1.0, _fit_on_disk.SECONDS
        try:
            return work(folder)
        finally:
            _fit_on_disk.SECONDS = before

    return run


def guarded(version: int) -> Guard:
    x, y = points(version, 240)
    return Guard(x, y, precision=(0.5, 0.6)[version])


def ruled(version: int) -> Rule:
    right = np.arange(300) % 3 > 0
    scores = np.random.default_rng(version).normal(0.6 + 0.2 * right, 0.1)
    return calibrate_scores(scores, right).guarantee(precision=0.8)


def _statistics(version: int) -> Statistics:
    x, y = points(version)
    return Statistics("a task", ClassSums.of(y, x.double()), (x.double().square().sum(0),))


def _monitor(version: int) -> Monitor:
    generator = torch.Generator().manual_seed(version)
    monitor = Monitor({"a": torch.rand(90, generator=generator)}, window=30)
    monitor.update({"a": (1 + version) * torch.rand(100, generator=generator)})
    return monitor


def _pretrained(folder: Path) -> str:
    """Posterior, weights and what is said of them."""
    saved = SavedFile(folder / FILE)
    embedder = LaplaceEmbedder._of(saved, network_of(saved, folder, network()))
    return f"{saved.part(NETWORK).content} {_posterior(embedder)}"


def _answers(guard: Guard) -> str:
    """What a guard answers, and all that it knows of its threshold."""
    answers = guard.ask(points(0)[0])
    facts = [answers.label.tolist(), answers.probability.tolist(), guard.precision]
    return f"{facts} {_posterior(guard.embedder)} {_found(guard.index)}"


def _rule(rule: Rule) -> str:
    """What a rule decides."""
    scores = np.linspace(0.4, 1, 50)
    return f"{rule} {rule.scores.probability(scores).tolist()}"


TOWERS = """
import torch
from torch import nn


class Words(nn.Module):
    def forward(self, texts):
        return torch.stack([torch.eye(5)[ord(text[-1]) % 5] for text in texts])


def texts():
    return Words()


def images():
    return nn.Flatten()
"""


def _draw_pairs(place: Path) -> None:
    """Two tables of images and texts, and a module of both encoders."""
    (place / "damage_towers.py").write_text(TOWERS)
    sys.path.append(str(place))
    for i in range(24):
        pixels = np.random.default_rng(i).integers(0, 60, (4, 4), dtype=np.uint8) + 40 * (i % 5)
        Image.fromarray(pixels.astype(np.uint8)).save(place / f"{i}.png")
    for version in (0, 1):
        rows = [f"{i}.png,text {(i + version * (i % 2)) % 5}" for i in range(24)]
        (place / f"photos{version}.csv").write_text("\n".join(["image,text", *rows]) + "\n")


def _pairs(path: Path) -> str:
    """Recipe, heads and both indexes of ``image-text fit``."""
    saved = SavedFile(path)
    embedder = ImageTextEmbedder._of(saved, Precomputed(), Precomputed())
    recipe = PairsRecipe.read(saved)
    images, texts = (Index._of(saved, embedder, side) for side in (IMAGES, TEXTS))
    facts = [texts.ids.tolist(), texts.search(torch.ones(1, 16), k=5).ids.tolist()]
    return f"{recipe} {_found(images)} {facts}"


def python_writers() -> list[Writer]:
    """Every writer of the Python interface."""
    embedders = [fitted(version) for version in (0, 1)]

    def built(version: int, engine: Any) -> Index:
        x, y = points(version)
        index = embedders[0].index(x, y, engine=engine, progress=False)
        index.calibrate(*points(version + 2, 100), progress=False)
        return index

    guards = [guarded(version) for version in (0, 1)]
    method = [Mahalanobis(network()).fit([points(v)], progress=False) for v in (0, 1)]
    values: dict[str, tuple[Any, Callable[[Path], str]]] = {
        "LaplaceEmbedder.save": (
            embedders,
            lambda path: _posterior(LaplaceEmbedder.load(path, network())),
        ),
        "Guard.save": (guards, lambda path: _answers(Guard.load(path))),
        "Rule.save": (
            [ruled(version) for version in (0, 1)],
            lambda path: _rule(Rule.load(path)),
        ),
        "Monitor.save": ([_monitor(v) for v in (0, 1)], _resaved(Monitor.load)),
        "Statistics.save": ([_statistics(v) for v in (0, 1)], _resaved(Statistics.load)),
        "baseline.save": (method, _resaved(lambda f: Mahalanobis.load(f, network()))),
    }
    engines = {"flat": "flat", "IVF": IVF(lists=4), "HNSW": HNSW()}
    for name, engine in engines.items():
        indexes = [built(version, engine) for version in (0, 1)]
        values[f"Index.save, {name}"] = (
            indexes,
            lambda path: _found(Index.load(path, embedders[0])),
        )

    def mapped(folder: Path) -> str:
        return _found(Index.load(folder / VALUE, embedders[0], mmap=True, verify=True))

    def save_mapped(folder: Path, version: int) -> None:
        """Over an index that this process has mapped, from another that is."""
        path = folder / VALUE
        before = Index.load(path, embedders[0], mmap=True) if path.exists() else None
        expected = before and _found(before)
        source = folder.with_name(f"{folder.name} source")
        values["Index.save, flat"][0][version].save(source)
        Index.load(source, embedders[0], mmap=True).save(path)
        assert before is None or _found(before) == expected

    def saver(saved: Any) -> Callable[[Path, int], None]:
        return lambda folder, version: saved[version].save(folder / VALUE)

    def reader(read: Callable[[Path], str]) -> Callable[[Path], str]:
        return lambda folder: read(folder / VALUE)

    writers = [Writer(name, saver(saved), reader(read)) for name, (saved, read) in values.items()]
    writers.append(Writer("Index.save, mapped", save_mapped, mapped))

    def save_pretrained(folder: Path, version: int) -> None:
        embedders[version].save_pretrained(folder)

    writers.append(Writer("save_pretrained", save_pretrained, _pretrained))
    for name, work in {
        "fit(checkpoint_dir)": _quick(_fit_in),
        "OnlineLaplace.fit(checkpoint)": _train_in,
        "feature spool": _append_in,
    }.items():
        writers.append(
            Writer(name, lambda f, _, work=work: (work(f), None)[1], _in_copy(work), True)
        )
    return writers


def command_writers(place: Path) -> list[Writer]:
    """Every command that writes, with two posteriors and two indexes of its own in ``place``."""
    for version in (0, 1):
        x, y = points(version, 240)
        np.savez(place / f"items{version}.npz", embeddings=x, labels=y)
        items, posterior, index = (place / f"{n}{version}" for n in ("items", "p", "i"))
        items = items.with_suffix(".npz")
        command("fit", items, "--output", posterior, "--holdout", "0.4")
        command("index", items, "--posterior", posterior, "--output", index)
    queries = place / "items0.npz"
    _draw_pairs(place)

    def writer(name: str, output: str, *arguments: str) -> Writer:
        def write(folder: Path, version: int) -> None:
            folder.mkdir(exist_ok=True)
            here = [a.format(place=place, v=version, folder=folder) for a in arguments]
            command(*name.split(" --")[0].split(), *here, "--overwrite")

        def read(folder: Path) -> str:
            path = folder / output
            if path.suffix:
                return sha256_of(path)
            if output == "posterior":
                return f"{ModelRecipe.read(SavedFile(path))}" + _posterior(
                    LaplaceEmbedder.load(path)
                )
            if output == "pairs":
                return _pairs(path)
            asked = parser_of("search").parse([str(path), str(queries)])
            loaded = load_gallery(path, asked, Reporter(quiet=True))
            embedder = loaded.posterior.embedder
            return _found(loaded.index) + _posterior(embedder) + repr(loaded.origin)

        return Writer(name, write, read, command=True)

    items, index = "{place}/items{v}.npz", "{place}/i{v}"
    posterior = ("--posterior", "{place}/p{v}")
    towers = ("--model", "damage_towers:images", "--text-model", "damage_towers:texts")
    towers += ("--epochs", "2", "--dim", "4", "--holdout", "0.2")
    return [
        writer("fit", "posterior", items, "--output", "{folder}/posterior"),
        writer("index", "index", items, *posterior, "--output", "{folder}/index"),
        writer(
            "embed", "e.npz", items, *posterior, "--batch-size", "1", "--output", "{folder}/e.npz"
        ),
        writer("search --output", "r.csv", index, items, "--output", "{folder}/r.csv"),
        writer("evaluate --json", "e.json", index, items, "--json", "{folder}/e.json"),
        writer("report", "r.html", index, items, "--output", "{folder}/r.html"),
        writer(
            "image-text fit",
            "pairs",
            "{place}/photos{v}.csv",
            *towers,
            "--output",
            "{folder}/pairs",
        ),
    ]
