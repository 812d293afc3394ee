"""What an ``ImageTextEmbedder`` is made with, and what its training is told."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from laplace_metric._utils.validation import check_count, check_name, check_positive, check_real
from laplace_metric.errors import InputError
from laplace_metric.image_text._heads import FIRST_TRACE, TOKENS

TOWER_STRUCTURES = ("kron", "diag", "full")


@dataclass(frozen=True)
class HeadSettings:
    """See ``ImageTextEmbedder``.

    Examples
    --------
    >>> HeadSettings(dim=32).structure
    'kron'
    """

    dim: int = 64
    hidden: int = 0
    dropout: float = 0.0
    train_encoders: bool = False
    structure: str = "kron"
    prior_precision: float = 1.0
    n_effective: float | None = None
    tokens: str = "head"
    layer_norm: bool = True
    first_trace: float = FIRST_TRACE
    encoder_rate: float = 0.1

    def __post_init__(self) -> None:
        check_count("dim", self.dim, 2)
        check_count("hidden", self.hidden, 0)
        if not 0 <= check_real("dropout", self.dropout) < 1:
            raise InputError(f"dropout={self.dropout!r}: pass a number in [0, 1).")
        for name in ("train_encoders", "layer_norm"):
            if not isinstance(getattr(self, name), bool):
                raise InputError(f"{name}={getattr(self, name)!r}: pass True or False.")
        check_name("tokens", self.tokens, TOKENS)
        check_positive("first_trace", self.first_trace)
        check_positive("encoder_rate", self.encoder_rate)
        check_name("structure", self.structure, TOWER_STRUCTURES)
        check_positive("prior_precision", self.prior_precision)
        if self.n_effective is not None:
            check_positive("n_effective", self.n_effective)

    def to_json(self) -> dict[str, Any]:
        """Plain values, by name."""
        return asdict(self)


@dataclass(frozen=True)
class TrainingOptions:
    """See ``ImageTextEmbedder.fit``."""

    epochs: int
    batch_size: int
    learning_rate: float
    weight_decay: float
    progress: bool
    folder: Path | None
    every: int | None

    def __post_init__(self) -> None:
        check_count("epochs", self.epochs)
        check_count("batch_size", self.batch_size, 2)
        check_positive("learning_rate", self.learning_rate)
        if check_real("weight_decay", self.weight_decay) < 0:
            raise InputError(f"weight_decay={self.weight_decay!r}: pass a number >= 0.")
        if self.every is not None:
            check_count("checkpoint_every", self.every)
            if self.folder is None:
                raise InputError("checkpoint_every= is given without checkpoint=: pass a folder.")

    def to_json(self) -> dict[str, Any]:
        """What must be the same in a run that goes on."""
        names = ("epochs", "batch_size", "learning_rate", "weight_decay")
        return {name: getattr(self, name) for name in names}
