"""A posterior inside the training loops of others: files to copy from.

``LaplaceTester`` is a tester of pytorch-metric-learning whose accuracies have the numbers of a
posterior as well, so that a ``HookContainer`` records them. ``lightning_callback`` fits a posterior
every few epochs of a Lightning trainer, and logs the same numbers. Both leave weights, modes and
random states of the training as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from pytorch_metric_learning.testers import GlobalEmbeddingSpaceTester
from torch import Tensor, nn
from torch.utils.data import DataLoader

from laplace_metric import LaplaceEmbedder
from laplace_metric.evaluation import auroc, r_auroc, recall_at_k


def posterior_numbers(
    embedder: LaplaceEmbedder, queries: Iterable[Any], ood: Mapping[str, Iterable[Any]]
) -> dict[str, float]:
    """Return recall among the queries, R-AUROC of the epistemic number, and OOD AUROCs.

    R-AUROC: the chance that a query whose nearest neighbour is wrong has the larger number than one
    whose is right. OOD AUROC: the chance that an input of another set has the larger number.
    """
    means, labels, numbers = list[Tensor](), list[Tensor](), list[Tensor]()
    for inputs, of in queries:
        embedding = embedder(inputs)
        means.append(embedding.mean)
        numbers.append(embedding.epistemic)
        labels.append(of)
    epistemic = torch.cat(numbers)
    recall = recall_at_k(torch.cat(means), torch.cat(labels))  # each query without itself
    right = recall.per_query[recall.counted]
    found = {"recall_at_1": recall.value, "r_auroc": r_auroc(epistemic[recall.counted], right)}
    for name, loader in ood.items():
        others = torch.cat([embedder(inputs).epistemic for inputs, _ in loader])
        found[f"ood_auroc_{name}"] = auroc(epistemic, others)
    return found


class LaplaceTester(GlobalEmbeddingSpaceTester):
    """``GlobalEmbeddingSpaceTester`` that fits a posterior to ``fit_on`` and measures it."""

    def __init__(self, fit_on: Any, ood: Mapping[str, Any], **tester: Any) -> None:
        super().__init__(**tester)
        self.fit_on, self.ood = fit_on, ood

    def test(
        self,
        dataset_dict: Any,
        epoch: int,
        trunk_model: Any,
        embedder_model: Any = None,
        *more: Any,
    ) -> Any:
        """Fit, then test as the base class does."""
        model = trunk_model
        if embedder_model is not None:
            model = nn.Sequential(trunk_model, embedder_model)
        with torch.random.fork_rng():  # loaders draw from the global state
            fitted = LaplaceEmbedder(model)
            self.embedder_ = fitted.fit(self._loader(self.fit_on), progress=False)
            self._sets = dataset_dict
            return super().test(dataset_dict, epoch, trunk_model, embedder_model, *more)

    def do_knn_and_accuracies(self, accuracies: Any, *more: Any) -> None:
        """Add the numbers to the accuracies of the base class."""
        super().do_knn_and_accuracies(accuracies, *more)
        queries, ood = self._loader(self._sets[more[1]]), self.ood.items()
        loaders = {name: self._loader(data) for name, data in ood}
        accuracies |= posterior_numbers(self.embedder_, queries, loaders)

    def _loader(self, data: Any) -> Any:
        return DataLoader(data, self.batch_size)


def lightning_callback(queries: Any, ood: Mapping[str, Any], every_n_epochs: int = 1) -> Any:
    """Return a callback for ``Trainer(callbacks=[...])``, in one process."""
    try:
        from lightning.pytorch import Callback
    except ImportError:
        from pytorch_lightning import Callback

    class LaplaceCallback(Callback):
        """Its ``embedder_`` is the posterior of the last fit."""

        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            epochs = trainer.current_epoch + 1
            if epochs % every_n_epochs and epochs != trainer.max_epochs:
                return
            with torch.random.fork_rng():
                fitted = LaplaceEmbedder(pl_module)
                self.embedder_ = fitted.fit(trainer.train_dataloader, progress=False)
                numbers = posterior_numbers(self.embedder_, queries, ood)
            pl_module.log_dict({f"laplace/{name}": value for name, value in numbers.items()})

    return LaplaceCallback()
