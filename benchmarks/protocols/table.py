"""Every protocol that measures fitted methods: its tasks and methods at each size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks.engine.experiment import Experiment
from benchmarks.engine.scores import Measured
from benchmarks.methods import METHODS
from benchmarks.methods.table import ON_INFONCE, VARIANTS
from benchmarks.protocols import corruption
from benchmarks.protocols.closed_set import human, lam
from benchmarks.protocols.open_set import fewshot, url

NUMBERS = ("laplace, epistemic", "laplace, ambiguity", "laplace, match")
PARTS = ("laplace, near", "laplace, far")
AGAIN = tuple(entry.name for entry in ON_INFONCE)
DETECTORS = tuple(
    name for name, entry in METHODS.items() if entry.group == "detector" and name not in AGAIN
)
PAPER_LAM = (
    "metric learning, 1/norm", "infonce, 1/norm", "laplace", "laplace, diagonal",
    "laplace, clipped", "laplace, evidence", "laplace, tuned", *NUMBERS, *PARTS, *DETECTORS, *AGAIN,
    "pfe", "mc dropout", "deep ensemble", "hib", "mcinfonce",
)  # fmt: skip
ONLY_PRETRAINED = {entry.name for entry in VARIANTS}
EVERY = tuple(name for name in METHODS if name not in ONLY_PRETRAINED)
HUMAN = (
    "metric learning, 1/norm", "infonce, 1/norm", "laplace", "laplace, diagonal",
    "laplace, clipped", "laplace, evidence", "laplace, tuned", *NUMBERS, "mahalanobis++",
    "relative mahalanobis", "k-nn distance", "nuq", "nnguide", "loss prediction, frozen", "pfe",
    "mc dropout", "deep ensemble", "hib", "mcinfonce", "elk", "nivmf", "cross-entropy",
)  # fmt: skip
LAST = ("elk, proxies", "vmf loss", "explicit concentration")  # not among the methods of URL
WIDE = tuple(entry.name for entry in VARIANTS if entry.group == "laplace")
LOGISTIC = ("nnguide", "nnguide, on infonce")
BIRDS = ("pretrained-cub", "pretrained-cub-unseen")
SKIPPED = {
    "omniglot": (*LAST, *LOGISTIC, "vim, on infonce"),
    "pretrained-omniglot": (*WIDE, "vim", "nnguide"),
    **dict.fromkeys(("pretrained-cifar10", *BIRDS, "pretrained-emoji"), WIDE),
}
"""Too long: trainings of 800 classes, or (ViM) their logistic regression; Z x Z numbers a class."""
BASIC = ("metric learning, 1/norm", "laplace", "laplace, diagonal", "laplace, clipped")
CORRUPTION = (
    *BASIC, "laplace, tuned", "laplace, epistemic", "laplace, ambiguity", "mahalanobis",
    "mahalanobis++", "relative mahalanobis", "k-nn distance", "nuq", "nnguide",
    "loss prediction, frozen", "mc dropout", "deep ensemble", "hib", "mcinfonce", "elk",
    "explicit concentration", "cross-entropy",
)  # fmt: skip
FEWSHOT = (*BASIC, "cross-entropy", "mcinfonce", "elk", "nivmf")
PRETRAINED = (
    "1/norm", "laplace", "laplace, diagonal", "laplace, clipped", "laplace, evidence",
    "laplace, arccos positives, diagonal", "laplace, arccos full, diagonal",
    "laplace, euclidean fixed, diagonal", "laplace, euclidean positives, diagonal",
    "laplace, euclidean full, diagonal", *NUMBERS, *PARTS,
    *(name for name in DETECTORS if name != "k-nn distance, features"),
)  # fmt: skip


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
    """One task in the smallest size, these in the others."""
    return {"smoke": (smallest,) if smallest else (), "small": tasks, "paper": tasks}


UNSEEN = sizes("digits-unseen", "omniglot", "cifar10-unseen")
KNOWN = sizes("digits", "fashion-mnist", "cifar10", "omniglot")
PEOPLE = sizes("", "cifar10h-soft", "cifar10h-hard")
READY = sizes("pretrained-digits", "pretrained-cifar10", "pretrained-omniglot", "pretrained-text")
PROTOCOLS = {
    one.name: one
    for one in (
        Protocol("lam", lam, KNOWN, PAPER_LAM, ("cub200", "lfw", "cub")),
        Protocol("url", url, UNSEEN, EVERY, ("cub200", "cub")),
        Protocol("fewshot", fewshot, sizes("digits-unseen", "omniglot"), FEWSHOT, ("cub-96",)),
        Protocol("human", human, PEOPLE, HUMAN),
        Protocol("corruption", corruption.measure, sizes("photographs", "cifar10"), CORRUPTION),
        Protocol("pretrained", lam, READY, PRETRAINED, (*BIRDS, "pretrained-emoji")),
    )
}
