"""Every method on FashionMNIST with MNIST and KMNIST out of distribution.

    python -m benchmarks.comparison --data DIR --cache DIR

For each method: choose among at most four settings by the area under the sparsification curve of
recall@1 on 2,500 training images that are held out (seed 100, trainings of 3 rounds), then train
with three other seeds for 8 rounds of 2,560 images (RMSprop, batches of 128, one network and one
initialisation for all methods; learning rate 1e-3, or that of the settings) and measure on test
images. Out-of-distribution images are never tuned on. A finished run is a JSON in the cache and is
not repeated; ``results/comparison.json`` has all of them.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import nn

from baselines import MetricLearning
from benchmarks.comparison.methods import BASE, METHODS, Entry
from benchmarks.comparison.protocol import (
    FULL,
    SHORT,
    TUNING_SEED,
    Sets,
    fit,
    measure,
    new_network,
    tune,
)
from benchmarks.records import read_record, write_record
from laplace_metric.errors import DegenerateCurvatureWarning, InputError, PriorAtEdgeWarning


class Runs:
    """What is done, in a folder; and doing what is not."""

    def __init__(self, folder: Path, sets: Sets, size: int) -> None:
        self.folder, self.sets, self.size = folder, sets, size

    def choice(self, entry: Entry) -> dict[str, Any]:
        """The tuned settings of a method."""
        if isinstance(entry.grid, str):
            return self.choice(METHODS[entry.grid])
        name = self._name("tuned", entry.name, TUNING_SEED)
        if not self._has(name):
            start = time.process_time()
            tried = [{"settings": entry.grid[0]}]
            if len(entry.grid) > 1:
                network = self._network(entry, TUNING_SEED, SHORT)
                tried = tune(entry, network, self.sets)
            seconds = time.process_time() - start
            self._write(name, {"method": entry.name, "tried": tried, "cpu_seconds": seconds})
        tried = read_record(name, self.folder)["tried"]
        if [one["settings"] for one in tried] != list(entry.grid):
            raise InputError(f"{self.folder} holds {name}.json of another grid: delete it.")
        best = max(tried, key=lambda one: one.get("ausc", 0.0))
        return dict(best["settings"])

    def run(self, entry: Entry, seed: int) -> None:
        """Train and measure, unless it is done."""
        names = (entry.name, *(name for name, _ in entry.derived))
        settings = self.choice(entry)
        if all(self._has(self._name("run", name, seed)) for name in names):
            self._check(names, seed, settings)
            return
        network = self._network(entry, seed, FULL)
        start = time.process_time()
        method, losses = fit(entry, network, self.sets, seed, settings, FULL)
        row = {
            "group": entry.group,
            "embedding_size": self.size,
            "seed": seed,
            "settings": settings,
            "fit_cpu_seconds": time.process_time() - start,
            "losses": losses,
        }
        for name, change in ((entry.name, None), *entry.derived):
            measured = measure(entry, method if change is None else change(method), self.sets)
            self._write(self._name("run", name, seed), {"method": name, **row, **measured})
            print(describe({"method": name, **row, **measured}), flush=True)

    def _check(self, names: Iterable[str], seed: int, settings: dict[str, Any]) -> None:
        """Finished runs have the settings that are chosen now."""
        for name in names:
            file = self._name("run", name, seed)
            if read_record(file, self.folder)["settings"] != settings:
                raise InputError(f"{self.folder} holds {file}.json of other settings: delete it.")

    def _network(self, entry: Entry, seed: int, rounds: int) -> nn.Module:
        """New weights, or for a post-hoc method those that metric learning trained."""
        network = new_network(self.size, seed)
        if not entry.post_hoc:
            return network
        folder = self.folder / f"network-z{self.size}-rounds{rounds}-seed{seed}"
        if not folder.exists():
            base = METHODS[BASE]
            method, _ = fit(base, network, self.sets, seed, self.choice(base), rounds)
            assert isinstance(method, MetricLearning)
            method.save(folder)
        return MetricLearning.load(folder, network).model

    def _name(self, kind: str, method: str, seed: int) -> str:
        plain = "".join(c if c.isalnum() else "_" for c in method)
        return f"{kind}-{plain}-z{self.size}-seed{seed}"

    def _has(self, name: str) -> bool:
        return (self.folder / f"{name}.json").is_file()

    def _write(self, name: str, content: dict[str, Any]) -> None:
        write_record(name, content, self.folder)

    def collect(self) -> dict[str, Any]:
        """Everything of the folder in one record."""
        rows = [read_record(path.stem, self.folder) for path in sorted(self.folder.glob("*.json"))]
        for row in rows:
            row.pop("environment")
        return {
            "protocol": (__doc__ or "").split("\n\n")[2].strip(),
            "tuned": [row for row in rows if "tried" in row],
            "rows": [row for row in rows if "tried" not in row],
        }


def describe(row: dict[str, Any]) -> str:
    """A finished run in a line."""
    out = ", ".join(f"AUROC {key} {value['auroc']:.3f}" for key, value in row["out"].items())
    return (
        f"z={row['embedding_size']} seed={row['seed']} {row['method']} {row['settings']}: recall@1 "
        f"{row['recall@1']:.3f}, AUSC {row['ausc']:.3f}, R-AUROC {row['r_auroc']:.3f}, {out}, "
        f"{row['fit_cpu_seconds']:.0f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", help="folder of the image sets")
    parser.add_argument("--cache", required=True, type=Path, help="finished runs")
    parser.add_argument("--size", type=int, default=64, help="embedding size")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    options = parser.parse_args()
    warnings.simplefilter("ignore", DegenerateCurvatureWarning)  # shown by the numbers
    warnings.simplefilter("ignore", PriorAtEdgeWarning)
    folder = options.cache / "comparison"
    runs = Runs(folder, Sets.read(options.data), options.size)
    for seed in options.seeds:
        for name in options.methods:
            runs.run(METHODS[name], seed)
    print(write_record("comparison", runs.collect()).name)


if __name__ == "__main__":
    main()
