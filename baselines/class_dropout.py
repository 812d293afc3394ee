"""MC dropout over class probabilities (Gal and Ghahramani 2016; Srivastava et al. 2014).

    loss = -log softmax(W (m o z) + b)_y                  m_k = Bernoulli(1 - p) / (1 - p)
    p_s = softmax(W (m_s o z_s) + b)        uncertainty = H(mean_s p_s), or mean_s KL(p_s | mean p)

(Kirchhof et al. 2023b, appendix B.11.) The dropout sits between the raw embedding and the
classifier, which every model has; ``nn.Dropout`` layers inside the model are sampled too (z_s).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from baselines.base import UNSAVED, Sizes, Trained
from baselines.base.baseline import checked
from baselines.base.dropout_masks import bernoulli_mask, find_dropout, masked
from baselines.base.probabilities import check_disagreement, disagreement
from baselines.cross_entropy import LinearCrossEntropyLoss
from laplace_metric._utils.validation import check_count
from laplace_metric.embedding import Embedding
from laplace_metric.errors import InputError
from laplace_metric.heads._located import HeadActivations
from laplace_metric.inputs import ModelInput, read_batch
from laplace_metric.models._call_model import to_device
from laplace_metric.models._evaluation_mode import evaluation_mode
from laplace_metric.models._modules import device_of


@dataclass(eq=False, kw_only=True)
class ClassDropout(Trained):
    """A classifier with dropout at test time; (Z + 1) C weights, retrieval by the mean network.

    Costs one forward pass, and ``n_samples`` more if the model has dropout layers; else the
    samples cost Z C products each. ``uncertainty`` is in nats: the entropy of the mean
    probabilities, in [0, log C], or their Jensen-Shannon divergence, in [0, log min(S, C)].

    Parameters
    ----------
    rate : float in [0, 1)
        Dropout rate p of the classifier (URL tunes it in [0.05, 0.25]); the model's layers keep
        their own. Default: 0.1.
    n_samples : int
        Number S of samples (URL: 10). Default: 10.
    score : "entropy" | "jensen_shannon"
        Uncertainty of the samples: the entropy of their mean probabilities, the default, or their
        Jensen-Shannon divergence.
    seed : torch.Generator or None
        Generator of the masks, on the model's device. None, the default: the same masks in every
        call.

    Raises
    ------
    InputError
        For a rate outside [0, 1), an unknown score, or less than one sample.

    Examples
    --------
    >>> from baselines.base import Training
    >>> x, y = torch.randn(12, 4), torch.arange(12) % 3
    >>> method = ClassDropout(nn.Linear(4, 2), training=Training(epochs=2))
    >>> method.fit([(x, y)], progress=False)(x).uncertainty.shape
    torch.Size([12])
    """

    rate: float = 0.1
    n_samples: int = 10
    score: str = "entropy"
    seed: torch.Generator | None = field(default=None, metadata=UNSAVED)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("n_samples", self.n_samples)
        check_disagreement(self.score)
        if not 0 <= self.rate < 1:
            raise InputError(f"rate={self.rate!r}: pass a number in [0, 1).")

    def build(self, sizes: Sizes) -> dict[str, nn.Module]:
        """Return the dropout and the classifier's loss."""
        loss = LinearCrossEntropyLoss(sizes.embedding, sizes.classes)
        return {"dropout": nn.Dropout(self.rate), "loss": loss}

    def objective(self, activations: HeadActivations, labels: Tensor) -> Tensor:
        """Return the cross-entropy of the raw embeddings after dropout."""
        return self.parts["loss"](self.parts["dropout"](activations.raw), labels)

    def embedding(self, activations: HeadActivations) -> Embedding:
        """Return the embedding of one pass, as if the model had no dropout layers."""
        raw = activations.raw.expand(self.n_samples, -1, -1)
        return self._uncertain(activations, raw, self._generator())

    def __call__(self, inputs: ModelInput) -> Embedding:
        """Return embeddings under masks that are independent between inputs, samples and layers."""
        layers = find_dropout(self.model)
        if not layers:
            return super().__call__(inputs)
        generator = self._generator()

        def make(_name: str, shape: tuple[int, ...], rate: float, x: Tensor) -> Tensor:
            return bernoulli_mask(shape, rate, x, generator)

        inputs = to_device(read_batch("inputs", inputs), device_of(self.model))
        activations = self.activations(inputs)
        with masked(layers, make):
            raw = torch.stack([self.activations(inputs).raw for _ in range(self.n_samples)])
        return self._uncertain(activations, raw, generator)

    def _uncertain(
        self, activations: HeadActivations, raw: Tensor, generator: torch.Generator
    ) -> Embedding:
        """Return embeddings from raw ones [S, B, Z] of the thinned networks."""
        mask = bernoulli_mask(tuple(raw.shape), self.rate, raw, generator)
        loss = self.parts["loss"]
        assert isinstance(loss, LinearCrossEntropyLoss)
        with evaluation_mode(loss):
            score = disagreement(loss.classifier(raw * mask), self.score)
        return checked(self.points(activations, score))

    def _generator(self) -> torch.Generator:
        if self.seed is not None:
            return self.seed
        return torch.Generator(device_of(self.model)).manual_seed(self.training.seed)
