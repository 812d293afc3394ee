"""The head that all processes of a fit agree on, also those whose shard is empty."""

from __future__ import annotations

from torch import Tensor, nn

from laplace_metric._utils.precision import at_least_float32
from laplace_metric.errors import EmptyLoaderError
from laplace_metric.heads._identity import head_from_spec, head_spec
from laplace_metric.heads._locate import locate_head
from laplace_metric.heads._located import LocatedHead
from laplace_metric.heads._repeatable import check_repeatable
from laplace_metric.inputs._batches import ModelInput
from laplace_metric.laplace._points import Batches
from laplace_metric.laplace._processes import Processes


def first_batch(batches: Batches, *, or_none: bool) -> tuple[ModelInput, Tensor] | None:
    """Return the first batch; ``or_none``: None of a process whose loader yields no batch.

    Raises
    ------
    EmptyLoaderError
        If there is none, unless ``or_none``.
    """
    try:
        return next(batches)
    except EmptyLoaderError:
        if or_none:
            return None
        raise


def agreed_head(
    model: nn.Module,
    head: nn.Module | str | None,
    first: tuple[ModelInput, Tensor] | None,
    processes: Processes,
) -> tuple[LocatedHead, Tensor | None]:
    """Return the head and its input on the first batch; a process without one takes another's.

    Raises
    ------
    EmptyLoaderError
        If no process has a batch.
    InputError
        If the model draws at random, or mixes the rows of a batch.
    ShardError
        If a process has no such head, or other weights in it.
    """

    def locate() -> tuple[LocatedHead, Tensor] | None:
        if first is None:
            return None
        located, activations = locate_head(model, first[0], head)
        check_repeatable(model, located, first[0], activations)
        return located, at_least_float32(activations.features)

    mine = processes.run_on_all(locate)
    if mine is not None and processes.n == 1:
        return mine
    specs = processes.gather(None if mine is None else head_spec(mine[0]))
    expected = next((spec for spec in specs if spec is not None), None)
    if expected is None:
        raise EmptyLoaderError("no rank's loader yielded a batch: pass loaders with data.")
    processes.agree(lambda: expected if mine is None else head_spec(mine[0]))
    return processes.run_on_all(lambda: mine or (head_from_spec(expected, model), None))
