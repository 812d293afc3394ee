"""Fits, predictions and searches on one accelerator: ``python -m benchmarks costs --size gpu``.

No data set is needed: points are rectified Gaussians around a mean for each class, made on the
device. Every part runs in a process of its own, with a time limit; what fails is recorded, and the
next part begins. The record, ``speed_gpu.json``, is written after every part.

- agreement: uncertainties and ``epistemic`` of a small fit on the device, beside those of float64
  on the CPU.
- fit: ``LaplaceEmbedder.fit`` with its parts and peak memory, beside its limit on the same device:
  ``h W'``, ``z' h``, ``h' h``, ``z' z`` and the eigenvectors of the last two in float64.
- blocks: the curvature alone, for several sizes of the blocks that a pass reads at once.
- embed: a batch with its uncertainty and with ``epistemic``, beside the head alone.
- search: queries among items, by the flat engine alone and by ``Index.search``.
- waits: the lines that make the host wait for the device in a fit, and how often. A line whose
  count grows with the number of points is in a loop over them.
- kernels: launches of a fit, and the share of its time in which the device works.

``--size smoke`` runs the same parts on small numbers, on any device.
"""

from __future__ import annotations

import json
import statistics
import time
import traceback
import warnings
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

import laplace_metric
from benchmarks.costs.limits import head_of
from benchmarks.records import folder_of, write_record
from benchmarks.sizes import ON_DEVICE, DeviceSize, FitShape
from benchmarks.timing import in_limited_process, seconds, wait
from laplace_metric import LaplaceEmbedder
from laplace_metric.curvature import ContrastiveLoss
from laplace_metric.curvature._all_pairs import all_pairs_curvature
from laplace_metric.errors import InputError, LaplaceMetricWarning
from laplace_metric.heads._backends import jacobian_of
from laplace_metric.models._feature_store import FeatureStore

Row = dict[str, Any]
PACKAGE = Path(laplace_metric.__file__).parent
MEMORY_BYTES = 2**36
"""Features stay on the device up to these."""
LOADED = 65_536
"""Points of a batch of the loader."""
STAGES = (
    "laplace_metric.laplace.fit._fit:collect_points",
    "laplace_metric.laplace.fit._fit:with_near_far",
    "laplace_metric.laplace.fit._fit:posterior_of",
    "laplace_metric.laplace.fit._executor:PassExecutor.collect",
    "laplace_metric.laplace.fit._executor:next_pass",
    "laplace_metric.models._feature_store:FeatureStore.fingerprints",
    "laplace_metric.familiarity._fit_set:FitSet.read",
    "laplace_metric.familiarity._near_far:left_one_out",
    "laplace_metric.familiarity._near_far:novelty_units",
    "laplace_metric.familiarity._label_model:LabelModel.fit",
)
"""Functions whose time is recorded; those of ``familiarity`` are inside ``with_near_far``."""


def points(n: int, d: int, n_classes: int, device: str) -> tuple[Tensor, Tensor]:
    """Rectified Gaussians around a mean for each class, drawn on the device."""
    generator = torch.Generator(device).manual_seed(0)
    labels = torch.arange(n, device=device) % n_classes
    means = torch.randn(n_classes, d, generator=generator, device=device)
    h = torch.empty(n, d, device=device)
    for start in range(0, n, LOADED):
        part = slice(start, start + LOADED)
        h[part].normal_(generator=generator).add_(means[labels[part]]).relu_()
    return h, labels


def fitted(head: nn.Linear, h: Tensor, labels: Tensor, **options: Any) -> LaplaceEmbedder:
    """A Kronecker posterior of a head, with what ``epistemic`` needs."""
    batches = list(zip(h.split(LOADED), labels.split(LOADED), strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LaplaceMetricWarning)
        embedder = LaplaceEmbedder(head, structure="kron")
        return embedder.fit(batches, progress=False, memory_bytes=MEMORY_BYTES, **options)


def agreement(size: DeviceSize, device: str) -> list[Row]:
    """Relative errors of the device's numbers, against float64 on the CPU."""
    shape = size.compared
    (h, labels), head = points(*shape[:2], shape[3], device), head_of(shape[1], shape[2], device)
    queries = h[: shape[0] // 2] + 0.5 * h[shape[0] // 2 : 2 * (shape[0] // 2)]
    exact = fitted(head_of(shape[1], shape[2], "cpu").double(), h.double().cpu(), labels.cpu())
    wanted = exact(queries.double().cpu())
    rows = []
    for dtype in (torch.float32, torch.float64):
        embedder = fitted(head.to(dtype), h.to(dtype), labels)
        found, row = embedder(queries.to(dtype)), dict[str, Any](dtype=str(dtype), shape=shape)
        for name in ("mean", "uncertainty", "variance"):
            a, b = (getattr(x, name).double().cpu() for x in (found, wanted))
            error = (a - b).abs() / b.abs().clamp_min(1e-3 * b.abs().mean())
            row |= {f"{name}_median": float(error.median()), f"{name}_largest": float(error.max())}
        gap = (found.epistemic.double().cpu() - wanted.epistemic).abs()  # in standard deviations
        rows.append({**row, "epistemic_largest": float(gap.max())})
    return rows


def fit(size: DeviceSize, device: str, shape: FitShape) -> list[Row]:
    """One whole fit beside its limit, and its stages."""
    n, d, z, n_classes = shape
    (h, labels), head = points(n, d, n_classes, device), head_of(d, z, device)

    def limit() -> None:
        raw = h @ head.weight.T
        raw.T @ h
        for gram in (h.T @ h, raw.T @ raw):
            torch.linalg.eigh(gram.double())

    whole = partial(fitted, head, h, labels)
    limits, wholes = [], []
    for _ in range(size.repeats + 1):
        limits.append(seconds(limit, device)[0])
        wholes.append(seconds(whole, device)[0])
        print(f"  {n:,} x {d:,} -> {z}: {limits[-1]:.3f} s, {wholes[-1]:.3f} s", flush=True)
    row: Row = {"n": n, "d": d, "z": z, "classes": n_classes, "first_whole": wholes[0]}
    row |= {"limit": statistics.median(limits[1:]), "whole": statistics.median(wholes[1:])}
    row["ratio"] = row["whole"] / row["limit"]
    with stages(device) as took:
        whole()
    row["stages"] = took
    if device.startswith("cuda"):
        held = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        whole()
        row["features_mb"] = h.nbytes / 1e6
        row["extra_peak_mb"] = (torch.cuda.max_memory_allocated(device) - held) / 1e6
    return [row]


@contextmanager
def stages(device: str) -> Iterator[dict[str, float]]:
    """Seconds of each of ``STAGES``, of passes by their number, while the context is open."""
    took: dict[str, float] = {}
    with ExitStack() as patches:
        for place in STAGES:
            module, _, path = place.partition(":")
            owner, (*within, name) = import_module(module), path.split(".")
            for part in within:
                owner = getattr(owner, part)
            kept = vars(owner)[name]
            patches.enter_context(patch.object(owner, name, _timed(kept, name, took, device)))
        yield took


def _timed(kept: Any, name: str, took: dict[str, float], device: str) -> Any:
    """The same function, or class method, whose time is added up."""
    function = kept.__func__ if isinstance(kept, classmethod) else kept

    def call(*arguments: Any, **named: Any) -> Any:
        wait(device)
        begin = time.perf_counter()
        try:
            return function(*arguments, **named)
        finally:
            wait(device)
            number = f" {arguments[1] + 1}" if name == "collect" else ""
            key = f"pass{number}" if number else name
            took[key] = took.get(key, 0.0) + time.perf_counter() - begin

    return classmethod(call) if isinstance(kept, classmethod) else call


def blocks(size: DeviceSize, device: str) -> list[Row]:
    """Seconds of the curvature alone, by the bytes of a block."""
    n, d, z, n_classes = size.fits[-1]
    (h, labels), head = points(n, d, n_classes, device), head_of(d, z, device)
    loss, jacobian = ContrastiveLoss.of("arccos", "fixed", normalized=False), jacobian_of(head, z)
    rows = []
    for megabytes in size.blocks:
        budget = "CACHE_BYTES" if device == "cpu" else "DEVICE_BYTES"
        with patch(f"laplace_metric.models._feature_store.{budget}", megabytes * 2**20):

            def curvature() -> None:
                all_pairs_curvature(FeatureStore.of(h, labels), jacobian, loss, "kron")

            curvature()
            taken = min(seconds(curvature, device)[0] for _ in range(2))
        rows.append({"n": n, "d": d, "block_mb": megabytes, "curvature": taken})
        print(f"  blocks of {megabytes} MB: {taken:.3f} s", flush=True)
    return rows


def embed(size: DeviceSize, device: str) -> list[Row]:
    """One query and a batch, beside the head alone; medians."""
    rows = []
    for _, d, z, n_classes in size.fits:
        (h, labels), head = points(size.reference, d, n_classes, device), head_of(d, z, device)
        embedder = fitted(head, h, labels)
        for n in (1, size.batch):
            x = h[:n].clone()
            calls: dict[str, Callable[[], Any]] = {
                "forward": partial(head, x),
                "uncertainty": partial(_number, embedder, x, "uncertainty"),
                "epistemic": partial(_number, embedder, x, "epistemic"),
            }
            row: Row = {"batch": n, "d": d, "z": z}
            for name, call in calls.items():
                call()
                row[name] = statistics.median(seconds(call, device)[0] for _ in range(20))
            rows.append(row)
    return rows


def _number(embedder: LaplaceEmbedder, x: Tensor, name: str) -> Tensor:
    number: Tensor = getattr(embedder(x), name)
    return number


def search(size: DeviceSize, device: str, n: int) -> list[Row]:
    """Queries among n items; the flat engine alone, and with distances and their deviations."""
    _, d, z, n_classes = size.fits[0]
    (h, labels), head = points(n + size.queries, d, n_classes, device), head_of(d, z, device)
    embedder = fitted(head, h[: size.reference], labels[: size.reference])
    row: Row = {"items": n, "queries": size.queries, "d": d, "z": z}
    queries, build = h[n:].clone(), []
    batches = list(zip(h[:n].split(LOADED), labels[:n].split(LOADED), strict=True))
    row["build"] = seconds(
        lambda: build.append(embedder.index(batches, rank_by="mean", progress=False)), device
    )[0]
    index = build[0]
    row["items_on"] = str(index.items.encoded.mean.device)
    means = embedder(queries).mean
    calls: dict[str, Callable[[], Any]] = {
        "product": lambda: means.to(index.items.encoded.mean) @ index.items.encoded.mean.T,
        "engine": lambda: index.engine.search(means.to(index.items.encoded.mean), 10),
        "search": lambda: index.search(queries, 10),
    }
    for name, call in calls.items():
        row[f"{name}_first"] = seconds(call, device)[0]
        row[name] = statistics.median(seconds(call, device)[0] for _ in range(5))
    return [row]


def waits(size: DeviceSize, device: str) -> list[Row]:
    """Lines at which the host waits in a fit of n and of 2 n points, and how often."""
    n, d, z, n_classes = size.fits[0]
    counts = []
    for points_read in (n, 2 * n):
        (h, labels), head = points(points_read, d, n_classes, device), head_of(d, z, device)
        fitted(head, h, labels)
        with waiting_lines() as found:
            fitted(head, h, labels)
        counts.append(found)
    once, twice = counts
    order = sorted(once | twice, key=lambda line: -twice[line])
    return [{"line": line, "n": once[line], "two_n": twice[line]} for line in order]


@contextmanager
def waiting_lines() -> Iterator[Counter[str]]:
    """Count, by line of the package, the operations that make the host wait for CUDA."""
    found: Counter[str] = Counter()

    def note(message: Any, category: Any, *_: Any, **__: Any) -> None:
        if "called a synchronizing" in str(message):
            frames = traceback.extract_stack()
            own = [frame for frame in frames if Path(frame.filename).is_relative_to(PACKAGE)]
            last = own[-1] if own else frames[-2]
            where = Path(last.filename)
            place = where.relative_to(PACKAGE) if own else where.name
            found[f"{place}:{last.lineno} {last.line}"] += 1

    if not torch.cuda.is_available():
        yield found
        return
    with warnings.catch_warnings(), patch.object(warnings, "showwarning", note):
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode("default")


def kernels(size: DeviceSize, device: str) -> list[Row]:
    """Launches of a fit, the operations that take the device's time, and their share of the fit."""
    n, d, z, n_classes = size.fits[-2]
    (h, labels), head = points(n, d, n_classes, device), head_of(d, z, device)
    fitted(head, h, labels)
    kinds = [torch.profiler.ProfilerActivity.CPU]
    cuda = device.startswith("cuda")
    if cuda:
        kinds.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=kinds) as profile:
        taken = seconds(lambda: fitted(head, h, labels), device)[0]
    events = profile.key_averages()
    time_of = "self_device_time_total" if cuda else "self_cpu_time_total"
    spent = {event.key: getattr(event, time_of, 0) / 1e6 for event in events}
    first = sorted(spent, key=lambda key: -spent[key])[:20]
    launches = sum(event.count for event in events if "LaunchKernel" in event.key)
    rows: list[Row] = [{"n": n, "d": d, "z": z, "profiled": taken, "launches": launches}]
    return rows + [{"operation": key[:90], "seconds": spent[key]} for key in first]


def parts_of(size: DeviceSize) -> dict[str, tuple[str, Callable[..., list[Row]], tuple[Any, ...]]]:
    """Table of the record, function and arguments of every part, the most valuable first."""
    found: dict[str, tuple[str, Callable[..., list[Row]], tuple[Any, ...]]] = {
        "agreement": ("agreement", agreement, ())
    }
    for shape in size.fits:
        found[f"fit of {shape[0]:,} x {shape[1]:,} -> {shape[2]}"] = ("fit", fit, (shape,))
    found["waits"] = ("waits", waits, ())
    for n in size.galleries:
        found[f"search among {n:,}"] = ("search", search, (n,))
    found |= {
        "embed": ("embed", embed, ()),
        "blocks": ("blocks", blocks, ()),
        "kernels": ("kernels", kernels, ()),
    }
    return found


def run(options: Namespace) -> None:
    """Run every part, and write the record after each."""
    size, device = ON_DEVICE[options.size], str(options.device)
    if options.size == "gpu":
        if not torch.cuda.is_available():
            raise InputError("--size gpu needs a CUDA device: use --size smoke on this machine.")
        device = "cuda"
    begin, content = time.perf_counter(), dict[str, Any](device=device, errors=[])
    for name, (table, part, arguments) in parts_of(size).items():
        used = time.perf_counter() - begin
        limit = min(size.limit, size.total - used)
        print(f"{name} ... ({used:.0f} s used)", flush=True)
        try:
            if limit <= 0:
                raise TimeoutError(f"left out: {size.total:.0f} s are used")
            rows = in_limited_process(limit, part, size, device, *arguments)
        except Exception as error:  # the other parts are measured all the same
            text = f"{type(error).__name__}: {error}"
            content["errors"].append({"part": name, "error": text})
            print(f"  {text}", flush=True)
        else:
            content.setdefault(table, []).extend(rows)
            for row in rows:
                print(f"  {json.dumps(_short(row))}", flush=True)
        content["seconds"] = time.perf_counter() - begin
        path = write_record("speed_gpu", content, folder_of(options))
    print(f"{path.name}: {content['seconds']:.0f} s, {len(content['errors'])} errors", flush=True)


def _short(value: Any) -> Any:
    """The same with four digits of every number."""
    if isinstance(value, dict):
        return {key: _short(one) for key, one in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value
