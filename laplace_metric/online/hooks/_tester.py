"""A tester of pytorch-metric-learning whose accuracies have the numbers of a posterior too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from functools import cache
from typing import Any

import torch
from pytorch_metric_learning.testers import GlobalEmbeddingSpaceTester
from pytorch_metric_learning.utils import common_functions
from torch import Tensor, nn

from laplace_metric._utils.randomness import own_randomness
from laplace_metric._utils.validation import check_count
from laplace_metric.embedder import LaplaceEmbedder
from laplace_metric.errors import InputError, NotFittedError
from laplace_metric.models._calling import device_of, unwrapped
from laplace_metric.online.hooks._lightning import Seen, posterior_numbers, seen_by

Splits = list[tuple[str, list[str]]]
"""(name of the queries, names of the references)."""


class LaplaceTester(GlobalEmbeddingSpaceTester):  # type: ignore[misc]
    """``GlobalEmbeddingSpaceTester`` that also fits a posterior and measures it.

    The model is ``embedder(trunk(x))``, whose weights stay as they are. In addition to
    ``precision_at_1_level0`` and the like, ``all_accuracies`` then has
    ``r_auroc_epistemic_level0``, ``ood_auroc_NAME_level0`` and so on (``posterior_numbers``), so
    that a ``HookContainer`` records them. It goes through the fit set and each split once more than
    its base does.

    Parameters
    ----------
    fit_on : name of a split, or data set
        What the posterior is fitted to: the training data, never the queries.
    ood : mapping of name to data set
        Out-of-distribution sets.
    settings : mapping
        Of ``LaplaceEmbedder``, such as ``{"structure": "kron"}``.
    **tester
        Of ``GlobalEmbeddingSpaceTester``: ``accuracy_calculator``, ``end_of_testing_hook`` and so
        on. With ``normalize_embeddings=False`` pass ``settings={"distance": "euclidean"}``.

    Examples
    --------
    >>> import torch
    >>> from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
    >>> from torch.utils.data import TensorDataset
    >>> g = torch.Generator().manual_seed(0)
    >>> y = torch.arange(60) % 3
    >>> data = TensorDataset(torch.randn(60, 4, generator=g) + 2 * y[:, None], y)
    >>> calculator = AccuracyCalculator(include=("precision_at_1",), device=torch.device("cpu"))
    >>> tester = LaplaceTester(
    ...     fit_on=data,
    ...     settings={"distance": "euclidean"},
    ...     normalize_embeddings=False,
    ...     accuracy_calculator=calculator,
    ...     dataloader_num_workers=0,
    ... )
    >>> model = nn.Linear(4, 2)
    >>> with torch.no_grad():
    ...     _ = model.weight.copy_(torch.eye(2, 4))
    >>> found = tester.test({"val": data}, 1, model)["val"]
    >>> "r_auroc_epistemic_level0" in found
    True
    """

    def __init__(
        self,
        fit_on: Any = "train",
        ood: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        **tester: Any,
    ) -> None:
        super().__init__(**tester)
        self.fit_on, self.ood, self.settings = fit_on, dict(ood or {}), dict(settings or {})
        self._embedder: LaplaceEmbedder | None = None
        self._seen: Callable[..., Seen] | None = None

    @property
    def embedder_(self) -> LaplaceEmbedder:
        """That of the last test, of its last level of labels.

        Raises
        ------
        NotFittedError
            Before ``test``.
        """
        if self._embedder is None:
            raise NotFittedError("this LaplaceTester has fitted nothing yet: call test(...).")
        return self._embedder

    def test(
        self,
        dataset_dict: Mapping[str, Any],
        epoch: int,
        trunk_model: nn.Module,
        embedder_model: nn.Module | None = None,
        splits_to_eval: Splits | None = None,
        collate_fn: Any = None,
    ) -> dict[str, dict[str, Any]]:
        """Return the accuracies of the base class by split, and the posterior's numbers.

        Raises
        ------
        InputError
            If ``fit_on`` names no split.
        """
        if isinstance(self.fit_on, str) and self.fit_on not in dataset_dict:
            raise InputError(
                f"fit_on={self.fit_on!r} is none of the splits {sorted(dataset_dict)}: pass one of "
                "them, or LaplaceTester(fit_on=data_set)."
            )
        trunk = unwrapped(trunk_model)
        plain = self.use_trunk_output or isinstance(embedder_model, (nn.Identity, type(None)))
        model = trunk if plain else nn.Sequential(trunk, unwrapped(embedder_model))
        embedders: dict[int, LaplaceEmbedder] = {}

        def batches(data: Any, level: int) -> Iterator[tuple[Any, Tensor]]:
            return self._batches(data, level, device_of(model), collate_fn)

        @cache
        def seen(name: str, level: int, ood: bool = False) -> Seen:
            """Return a split, or a set of ``ood``, as the posterior of a level sees it."""
            if level not in embedders:
                on = dataset_dict[self.fit_on] if isinstance(self.fit_on, str) else self.fit_on
                one = LaplaceEmbedder(model, **self.settings)
                embedders[level] = one.fit(batches(on, level), progress=False)
            self._embedder = embedders[level]
            data = self.ood[name] if ood else dataset_dict[name]
            return seen_by(embedders[level], batches(data, level))

        self._seen = seen
        splits = deepcopy(splits_to_eval)  # the base takes names out of it
        try:
            with own_randomness(0, device_of(model)):  # loaders draw from global states
                return super().test(
                    dataset_dict, epoch, trunk_model, embedder_model, splits, collate_fn
                )
        finally:
            self._seen = None

    def _batches(
        self, data: Any, level: int, device: torch.device, collate_fn: Any
    ) -> Iterator[tuple[Any, Tensor]]:
        """Yield ``(inputs, labels)`` of a data set, read as the base class reads it."""
        loader = common_functions.get_eval_dataloader(
            data, self.batch_size, self.dataloader_num_workers, collate_fn
        )
        for batch in loader:
            inputs, labels = self.data_and_label_getter(batch)
            if isinstance(inputs, Tensor):
                inputs = common_functions.to_device(inputs, device=device, dtype=self.dtype)
            codes = common_functions.process_label(labels, "all", self.label_mapper)
            yield inputs, codes[:, level] if codes.ndim > 1 else codes

    def do_knn_and_accuracies(
        self,
        accuracies: dict[str, Any],
        embeddings_and_labels: Any,
        query_split_name: str,
        reference_split_names: list[str],
    ) -> None:
        """Compute the accuracies of the base class, and the posterior's."""
        super().do_knn_and_accuracies(
            accuracies, embeddings_and_labels, query_split_name, reference_split_names
        )
        assert self._seen is not None
        every = []
        for level in self.label_levels:
            found = posterior_numbers(
                self._seen(query_split_name, level),
                Seen.joined([self._seen(name, level) for name in reference_split_names]),
                {name: self._seen(name, level, ood=True) for name in self.ood},
                among_them=query_split_name in reference_split_names,  # in front, as in the base
            )
            every.append(found)
            for name, value in found.items():
                accuracies[self.accuracies_keyname(name, label_hierarchy_level=level)] = value
        if len(every) > 1:
            shared = set.intersection(*map(set, every))
            self.calculate_average_accuracies(accuracies, sorted(shared), self.label_levels)

    def end_of_epoch_hook(
        self,
        dataset_dict: Mapping[str, Any],
        *,
        splits_to_eval: Splits | None = None,
        test_interval: int = 1,
        collate_fn: Any = None,
    ) -> Callable[[Any], bool]:
        """A hook for trainers that tests every so many epochs, where there is no HookContainer.

        Raises
        ------
        InputError
            For an interval below 1.
        """
        test_interval = check_count("test_interval", test_interval)

        def hook(trainer: Any) -> bool:
            if trainer.epoch % test_interval == 0:
                trunk, embedder = trainer.models["trunk"], trainer.models["embedder"]
                self.test(dataset_dict, trainer.epoch, trunk, embedder, splits_to_eval, collate_fn)
            return True

        return hook
