"""Every protocol that measures fitted methods: its tasks and methods at each size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks.engine.experiment import Experiment
from benchmarks.engine.scores import Measured
from benchmarks.methods import METHODS
from benchmarks.methods.table import VARIANTS
from benchmarks.protocols import corruption
from benchmarks.protocols.closed_set import human, lam
from benchmarks.protocols.open_set import url

NUMBERS = ("laplace, epistemic", "laplace, ambiguity", "laplace, match")
PARTS = ("laplace, near", "laplace, far")
DETECTORS = tuple(name for name, entry in METHODS.items() if entry.group == "detector")
LAM = (
    "metric learning, 1/norm", "infonce, 1/norm", "laplace", "laplace, diagonal",
    "laplace, clipped", "laplace, evidence", "laplace, tuned", *NUMBERS, *PARTS, *DETECTORS,
    "pfe", "mc dropout", "deep ensemble", "hib", "mcinfonce",
)  # fmt: skip
URL = tuple(name for name in METHODS if name not in {entry.name for entry in VARIANTS})
HUMAN = (
    "metric learning, 1/norm", "infonce, 1/norm", "laplace", "laplace, diagonal",
    "laplace, clipped", "laplace, evidence", "laplace, tuned", *NUMBERS, "mahalanobis++",
    "relative mahalanobis", "k-nn distance", "nuq", "nnguide", "loss prediction, frozen", "pfe",
    "mc dropout", "deep ensemble", "hib", "mcinfonce", "elk", "nivmf", "cross-entropy",
)  # fmt: skip
CORRUPTION = (
    "metric learning, 1/norm", "laplace", "laplace, diagonal", "laplace, clipped",
    "laplace, tuned", "laplace, epistemic", "laplace, ambiguity", "mahalanobis",
    "mahalanobis++", "relative mahalanobis", "k-nn distance", "nuq", "nnguide",
    "loss prediction, frozen", "mc dropout", "deep ensemble", "hib", "mcinfonce", "elk",
    "explicit concentration", "cross-entropy",
)  # fmt: skip
WIDE = tuple(entry.name for entry in VARIANTS if entry.group == "laplace")
PRETRAINED = (
    "1/norm", "laplace", "laplace, diagonal", "laplace, clipped", "laplace, evidence",
    *WIDE, *NUMBERS, *PARTS,
    *(name for name in DETECTORS if name != "k-nn distance, features"),
)  # fmt: skip
SKIPPED = dict.fromkeys(("pretrained-cifar10", "pretrained-cub-unseen"), WIDE)
"""Too long: a matrix of Z x Z numbers for every class."""


@dataclass(frozen=True)
class Protocol:
    """One question, asked of some methods on some tasks.

    Parameters
    ----------
    tasks : size -> names of tasks
    methods : names of methods
    if_there : names of tasks whose images are not downloaded: asked where the user has them
    """

    name: str
    measure: Callable[[Experiment], Measured]
    tasks: Mapping[str, tuple[str, ...]]
    methods: tuple[str, ...]
    if_there: tuple[str, ...] = ()

    def wants(self, task: str, method: str) -> bool:
        """Whether a method is measured on a task."""
        if method in SKIPPED.get(task, ()):
            return False
        return method in self.methods


def sizes(smallest: str, *tasks: str) -> dict[str, tuple[str, ...]]:
    """Return one task in the smallest size, and these in the others."""
    return {"smoke": (smallest,) if smallest else (), "small": tasks, "paper": tasks}


READY = sizes("pretrained-digits", "pretrained-cifar10", "pretrained-text")
PROTOCOLS = {
    one.name: one
    for one in (
        Protocol("lam", lam, sizes("digits", "fashion-mnist"), LAM, ("cub",)),
        Protocol("url", url, sizes("digits-unseen", "cifar10-unseen"), URL, ("cub",)),
        Protocol("human", human, sizes("", "cifar10h-soft"), HUMAN),
        Protocol("corruption", corruption.measure, sizes("photographs", "cifar10"), CORRUPTION),
        Protocol("pretrained", lam, READY, PRETRAINED, ("pretrained-cub-unseen",)),
    )
}
