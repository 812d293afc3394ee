"""Many classifiers on one embedder (Lakshminarayanan et al. 2017, on a shared backbone).

    mixture   loss = -log mean_m softmax(W_m z + b_m)_y        (Kirchhof et al. 2023b, B.10)
    mean      loss = mean_m -log softmax(W_m z + b_m)_y        each learns on its own

Under the mixture only the average has to be right, so a head that is ahead gets the gradient;
under the members' own losses only their start tells the heads apart.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from baselines.base import Sizes, Trained
from baselines.base.pairs import check_rows, log_mean_exp
from baselines.base.probabilities import check_disagreement, disagreement
from laplace_metric._utils.validation import check_count, check_name
from laplace_metric.embedding import Embedding
from laplace_metric.errors import UnknownNameError
from laplace_metric.heads._located import HeadActivations

LOSSES = ("mixture", "mean")


class EnsembleLoss(nn.Module):
    """``loss(embeddings, labels)`` with M linear classifiers of its own.

    Parameters
    ----------
    n_dimensions, n_classes, n_members : int
        Sizes Z of the embedding, C of the classes and M of the ensemble: M (Z + 1) C weights.
    kind : "mixture" | "mean"
        Kind of loss: "mixture", the cross-entropy of the mean probability, or "mean", the mean of
        the members' own.

    Examples
    --------
    >>> import torch
    >>> EnsembleLoss(2, 3, n_members=5).logits(torch.ones(4, 2)).shape
    torch.Size([5, 4, 3])
    """

    def __init__(
        self, n_dimensions: int, n_classes: int, n_members: int = 10, kind: str = "mixture"
    ) -> None:
        super().__init__()
        check_count("n_members", n_members)
        if kind not in LOSSES:
            raise UnknownNameError("loss", kind, LOSSES)
        self.n_members, self.kind = n_members, kind
        self.classifiers = nn.Linear(n_dimensions, n_members * n_classes)

    def logits(self, embeddings: Tensor) -> Tensor:
        """Return logits [M, B, C] of embeddings [B, Z]."""
        return self.classifiers(embeddings).unflatten(-1, (self.n_members, -1)).movedim(1, 0)

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Map embeddings [B, Z], class numbers [B] to a scalar, in nats an input."""
        check_rows(embeddings, labels)
        log_p = self.logits(embeddings).log_softmax(-1)
        each = log_p.gather(-1, labels.expand(self.n_members, -1)[..., None])[..., 0]  # [M, B]
        return -(log_mean_exp(each) if self.kind == "mixture" else each).mean()


@dataclass(eq=False, kw_only=True)
class SharedBackboneEnsemble(Trained):
    """Linear classifiers that share the embedder; costs one forward pass and M Z C products.

    ``uncertainty`` is in nats: the entropy of the mean probabilities, in [0, log C], or the
    members' Jensen-Shannon divergence, in [0, log min(M, C)].

    Parameters
    ----------
    n_members : int
        Number M of members (URL: 10). Default: 10.
    loss : "mixture" | "mean"
        Kind of loss: the cross-entropy of the mean probability (URL), the default "mixture", or the
        "mean" of the members' own.
    score : "entropy" | "jensen_shannon"
        Uncertainty of the members: the entropy of their mean probabilities, the default, or their
        Jensen-Shannon divergence.

    Raises
    ------
    InputError
        For an unknown loss or score, or less than one member.

    Examples
    --------
    >>> import torch
    >>> from baselines.base import Training
    >>> x, y = torch.randn(12, 4), torch.arange(12) % 3
    >>> method = SharedBackboneEnsemble(nn.Linear(4, 2), training=Training(epochs=2))
    >>> method.fit([(x, y)], progress=False)(x).uncertainty.shape
    torch.Size([12])
    """

    n_members: int = 10
    loss: str = "mixture"
    score: str = "entropy"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("n_members", self.n_members)
        check_disagreement(self.score)
        check_name("loss", self.loss, LOSSES)

    def build(self, sizes: Sizes) -> dict[str, nn.Module]:
        """Return the loss, with its classifiers."""
        loss = EnsembleLoss(sizes.embedding, sizes.classes, self.n_members, self.loss)
        return {"loss": loss}

    def objective(self, activations: HeadActivations, labels: Tensor) -> Tensor:
        """Return the members' loss on the raw embeddings."""
        return self.parts["loss"](activations.raw, labels)

    def embedding(self, activations: HeadActivations) -> Embedding:
        """Return point masses with the members' score [B]."""
        loss = self.parts["loss"]
        assert isinstance(loss, EnsembleLoss)
        return self.points(activations, disagreement(loss.logits(activations.raw), self.score))
