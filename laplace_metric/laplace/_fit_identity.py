"""What decides the numbers of a fit, as JSON values: to compare processes, and a checkpoint."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from laplace_metric._utils import __version__
from laplace_metric._utils.randomness import as_generator
from laplace_metric.heads._identity import head_spec
from laplace_metric.heads._located import LocatedHead
from laplace_metric.io import digest
from laplace_metric.laplace._fit_options import FitOptions
from laplace_metric.laplace._settings import Settings


def fit_identity(model: nn.Module, settings: Settings, options: FitOptions) -> dict[str, Any]:
    """Return, as JSON values, what every process of a fit must have alike: weights as a hash."""
    state = {k: v for k, v in model.state_dict().items() if isinstance(v, Tensor)}
    weights = digest(f"{model} {list(state)}", list(state.values()))
    sums = {"dtype": str(options.dtype), "reference": options.reference}
    return {**settings.to_json(), **sums, "model": weights, "version": __version__}


def checkpoint_identity(
    model: nn.Module, head: LocatedHead, settings: Settings, options: FitOptions
) -> dict[str, Any]:
    """Return, as JSON values, what decides the sums of a fit: they do not depend on the prior."""
    source = None if options.reference is None else as_generator(options.seed)
    state = [] if source is None else [source.get_state()]
    content = fit_identity(model, settings, options)
    for name in ("prior_precision", "n_effective", "positivity"):
        content.pop(name)
    return {**content, "head": head_spec(head), "generator": digest("", state)}
