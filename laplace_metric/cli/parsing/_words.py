"""Messages of the library in the words of the command line: arguments of Python are options there.

head='append'  ->  --head append          folds=300  ->  --cross-fit 300
"""

from __future__ import annotations

import re

SAME = (
    "allow_fitted", "batch", "batch_size", "cache", "calibrate", "channels", "checkpoint",
    "compact", "config", "cross_fit", "data", "dataset", "device", "dim", "distance", "engine",
    "epochs", "false_alarms", "figure", "head", "hessian", "holdout", "host",
    "id_column", "image", "image_column", "json", "label_column", "labels", "learning_rate",
    "limit", "margin", "max_body", "max_pixels", "max_waiting", "model", "no_cache", "objective",
    "open_set", "open_set_fraction", "optimize_prior", "output", "overwrite", "picture", "port",
    "positivity", "posterior", "precision", "prior_precision", "quiet", "rank_by", "reference",
    "seed", "seeds", "size", "skip_unreadable", "structure", "text", "text_column", "text_model",
    "trust_recipe", "window",
)  # fmt: skip
"""Arguments that are options under their own name."""
OPTIONS = {
    **{name: f"--{name.replace('_', '-')}" for name in SAME},
    "k": "-k",
    "folds": "--cross-fit",
    "checkpoint_dir": "--checkpoint",
    "item_data": "--data",
    "strangers": "--open-set-fraction",
}
"""What an argument is called on the command line."""
_VALUE = r"""'[^']*'|"[^"]*"|\.\.\.|[-+]?\d[\d_]*(?:\.\d+)?(?:e[-+]?\d+)?|\w+|"""
_ARGUMENT = re.compile(rf"(?<![\w./=-])({'|'.join(OPTIONS)})=({_VALUE})")


def in_options(text: str) -> str:
    """A message whose arguments are written as options.

    Examples
    --------
    >>> in_options("pass head='append' for a new layer, or structure='diag' with k=3.")
    'pass --head append for a new layer, or --structure diag with -k 3.'
    >>> in_options("head=...: pass labels=, or compact=True")
    '--head NAME: pass --labels, or --compact'
    """
    return _ARGUMENT.sub(_as_option, text)


def _as_option(found: re.Match[str]) -> str:
    name, value = OPTIONS[found[1]], found[2].strip("'\"")
    if value in ("", "True"):
        return name
    return f"{name} {'NAME' if value == '...' else value}"
