"""A fitted method on its task, and what several protocols ask of it, computed once."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from baselines.base import Baseline
from benchmarks.engine.matching import Doubt
from benchmarks.engine.method import DEPTH, Embedded
from benchmarks.methods import Entry
from benchmarks.methods.entry import Settings
from benchmarks.tasks import Part, Task, Workspace
from benchmarks.timing import usage
from laplace_metric import LaplaceEmbedder, ProbabilisticEmbedder
from laplace_metric.evaluation import recall_at_k
from laplace_metric.evaluation._nearest_neighbours import Neighbours, nearest_neighbours
from laplace_metric.evaluation._retrieval import RetrievalScore


@dataclass(frozen=True, eq=False)
class Experiment:
    """What is measured, and how much is to be done; ``base``: settings of the network under it."""

    entry: Entry
    method: ProbabilisticEmbedder
    task: Task
    space: Workspace
    seed: int
    base: Settings = field(default_factory=dict)

    def embed(self, part: Part, gallery: Part | None = None) -> Embedded:
        """Mean embeddings, uncertainties and labels, on the CPU.

        A match is looked for in ``gallery``, or else among the other items of the part.
        """
        embedding, labels = self.method.embed(part.loader(), progress=False)
        if self.entry.number == "match":
            assert isinstance(self.method, LaplaceEmbedder)
            doubt = Doubt(self.method, self.task.validation, self.task.new_classes)
            unsure = (
                doubt.among_themselves(part)
                if gallery is None
                else doubt.asker(gallery)(part.read())
            )
        else:
            unsure = getattr(embedding, self.entry.number).cpu()
        return Embedded(embedding.mean.cpu(), unsure, labels.cpu())

    def ask(self, inputs: Tensor) -> Embedded:
        """The same for inputs without labels."""
        part = Part(inputs, torch.zeros(len(inputs), dtype=torch.long))
        return self.embed(part, gallery=self.task.test)

    @cached_property
    def timed(self) -> tuple[Embedded, dict[str, float]]:
        """The queries, and what embedding them took."""
        with usage(self.space.device) as took:
            known = self.embed(self.task.test)
        return known, took

    @property
    def known(self) -> Embedded:
        """The queries."""
        return self.timed[0]

    @cached_property
    def ood(self) -> dict[str, Embedded]:
        """The OOD inputs."""
        return {name: self.embed(part, self.task.test) for name, part in self.task.out.items()}

    @cached_property
    def neighbours(self) -> Neighbours:
        """The nearest other queries of each query."""
        return nearest_neighbours(self.known.mean, k=min(DEPTH, len(self.known.labels) - 1))

    @cached_property
    def recall(self) -> RetrievalScore:
        """recall@1 of the queries among themselves."""
        return recall_at_k(self.known.mean, self.known.labels, 1, neighbours=self.neighbours)

    @property
    def answered(self) -> tuple[Tensor, Tensor]:
        """Uncertainty, and whether the nearest neighbour is right, of the queries that count."""
        counted = self.recall.counted
        return self.known.uncertainty[counted], self.recall.per_query[counted]

    def votes(self) -> Tensor:
        """Joint draws [S, Q, Z] of the queries."""
        n = self.entry.draws or self.space.size.draws
        draw = self.method.draw(n, self.space.generator(0))
        batches = (x.to(self.space.device) for x, _ in self.task.test.loader())
        return torch.cat([draw(x).cpu() for x in batches], dim=1)


def extra_parameters(method: ProbabilisticEmbedder) -> int:
    """Members, heads, proxies, memories; of Laplace the spectrum and the bases."""
    if isinstance(method, LaplaceEmbedder):
        basis = method.hessian_.basis
        blocks = getattr(basis, "blocks", ())
        sides = sum(block.left.numel() + block.right.numel() for block in blocks)
        return method.hessian_.eigenvalues.numel() + sides
    assert isinstance(method, Baseline)
    return sum(t.numel() for t in method.parts.state_dict().values())


def resolved(method: ProbabilisticEmbedder) -> dict[str, Any]:
    """What the defaults of a Laplace posterior came to, its prior precision included."""
    return method.settings.to_json() if isinstance(method, LaplaceEmbedder) else {}
