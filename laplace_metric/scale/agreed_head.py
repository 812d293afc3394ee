"""The head of a fit over several ranks, also on a rank whose shard is empty."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from laplace_metric.errors import EmptyLoaderError
from laplace_metric.heads import Head, capture, describe, described_head, find_head
from laplace_metric.scale.ranks import Ranks


def agreed_head(
    model: nn.Module,
    head: nn.Module | str | None,
    first: tuple[Any, Tensor] | None,
    ranks: Ranks,
) -> tuple[Head, int]:
    """The head and Z, found by the first batch; a rank without one takes another's word.

    Raises
    ------
    EmptyLoaderError
        If no rank has a batch.
    ShardError
        If a rank has no such head, or other weights in it.
    """
    mine = ranks.attempt(lambda: None if first is None else _found(model, head, first[0]))
    if mine is not None and ranks.n == 1:
        return mine
    told = ranks.gather(None if mine is None else describe(*mine))
    expected = next((words for words in told if words is not None), None)
    if expected is None:
        raise EmptyLoaderError("no rank's loader yielded a batch: pass loaders with data.")
    ranks.agree(expected if mine is None else describe(*mine))
    return ranks.attempt(lambda: mine or (described_head(expected, model), expected["n_outputs"]))


def _found(model: nn.Module, head: nn.Module | str | None, inputs: Any) -> tuple[Head, int]:
    found = find_head(model, inputs, head)
    return found, capture(model, found, inputs).raw.shape[1]
