"""Every protocol that measures fitted methods: its tasks and methods at each size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks.engine.scores import Measured
from benchmarks.engine.subject import Subject
from benchmarks.protocols import lam, url

PAPER_LAM = (
    "metric learning, 1/norm", "laplace", "laplace, kronecker", "laplace, evidence",
    "laplace, tuned", "mahalanobis", "k-nn distance", "vim", "pfe", "mc dropout", "deep ensemble",
    "hib", "mcinfonce",
)  # fmt: skip
PAPER_URL = (
    "metric learning, 1/norm", "infonce, 1/norm", "laplace", "laplace, kronecker",
    "laplace, evidence", "laplace, tuned", "k-nn distance", "cross-entropy", "mcinfonce", "elk",
    "nivmf", "contrastive hib", "het-xl", "loss prediction", "mc dropout", "dropout over classes",
    "shared-backbone ensemble", "sngp",
)  # fmt: skip


@dataclass(frozen=True)
class Protocol:
    """One question, asked of some methods on some tasks.

    Parameters
    ----------
    tasks : size -> names of tasks
    methods : names of methods
    """

    name: str
    measure: Callable[[Subject], Measured]
    tasks: Mapping[str, tuple[str, ...]]
    methods: tuple[str, ...]


def sizes(*tasks: str) -> dict[str, tuple[str, ...]]:
    """Digits in the smallest size, these in the others."""
    return {"smoke": ("digits",), "small": tasks, "paper": tasks}


PROTOCOLS = {
    one.name: one
    for one in (
        Protocol("lam", lam.measure, sizes("fashion-mnist", "cifar10", "omniglot"), PAPER_LAM),
        Protocol("url", url.measure, sizes("omniglot", "cifar10-unseen"), PAPER_URL),
    )
}
