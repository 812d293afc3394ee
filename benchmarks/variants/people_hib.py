"""HIB of MCInfoNCE's table 4 (Kirchhof et al. 2023a, eq. 54) on CIFAR-10H.

    python -m benchmarks variants --pieces people-hib --data DIR --cache DIR

The HIB of the comparison is that of Oh et al. 2019 with Gaussian embeddings, which hardly learns on
these labels. The paper compares with another one, of von Mises-Fisher embeddings and pairs of a
batch: `ContrastiveHIB`. It is measured here as ``python -m benchmarks human`` measures methods:
three folds, five trials of its settings, the same network and batches.
"""

from __future__ import annotations

import warnings
from argparse import Namespace

from benchmarks.protocols.closed_set import human
from benchmarks.protocols.runner import Runner
from benchmarks.protocols.table import Protocol
from benchmarks.records import write_record
from benchmarks.sizes import SMALL
from benchmarks.tasks import Workspace
from laplace_metric.errors import LaplaceMetricWarning

METHOD, TASK, NAME = "contrastive hib", "cifar10h-soft", "human"
KEPT = ("task", "method", "seed", "settings", "losses")


def run(options: Namespace) -> None:
    """Measure what is missing, and write ``people_hib.json``."""
    warnings.simplefilter("ignore", LaplaceMetricWarning)
    space = Workspace(options.data, options.cache, SMALL, progress=False)
    runner = Runner(space)
    protocol = Protocol(NAME, human, {SMALL.name: (TASK,)}, (METHOD,))
    jobs = [
        job for job in runner.jobs([protocol]) if options.seeds is None or job.seed in options.seeds
    ]
    runner.run(jobs)
    print(*runner.lines(jobs), sep="\n")
    found = [runner.store.read(NAME, job.task, job.method, job.seed) for job in jobs]
    rows = [{**{key: row[key] for key in KEPT}, "metrics": row["metrics"]} for row in found]
    print(write_record("people_hib", {"rows": rows}).name)
