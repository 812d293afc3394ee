"""``LaplaceMetricTransformer``: rows in, embeddings and their uncertainty out."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import TransformerMixin
from torch import nn

from laplace_metric._utils.validation import check_name
from laplace_metric.search._encoding import Encoder
from laplace_metric.search.estimators._base import Array, PosteriorEstimator, batches_of

OUTPUTS = ("both", "embedding", "numbers")
NUMBERS = ("uncertainty", "epistemic")


class LaplaceMetricTransformer(TransformerMixin, PosteriorEstimator):  # type: ignore[misc]
    """Embeddings [N, Z] of rows [N, D], with how unsure each is.

    Parameters
    ----------
    model : nn.Module or None
        Rows -> embeddings; None: the rows are embeddings already.
    head : module, name, "append" or None
        As of ``LaplaceEmbedder``; of a model.
    output : "both" | "embedding" | "numbers"
        The embedding; uncertainty and epistemic number; or these behind the embedding.
    distance, hessian, structure, prior_precision
        As of ``LaplaceEmbedder``. Rows of features are no directions: euclidean is the default, and
        with it "positives", whose curvature is never negative.

    Attributes
    ----------
    classes_ : array [C]
    encoder_ : Encoder
        Model and posterior.

    Raises
    ------
    InputError, LabelError
        For settings that do not exist, and a single class; both are ``ValueError``.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> x, y = load_iris(return_X_y=True)
    >>> LaplaceMetricTransformer().fit(x, y).transform(x[:2]).shape
    (2, 6)
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        head: Any = None,
        output: str = "both",
        distance: str = "euclidean",
        hessian: str = "positives",
        structure: str = "auto",
        prior_precision: float = 1.0,
    ) -> None:
        self.model, self.head, self.output = model, head, output
        self.distance, self.hessian, self.structure = distance, hessian, structure
        self.prior_precision = prior_precision

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def fit(self, X: Any, y: Any) -> LaplaceMetricTransformer:
        """Fit the posterior to rows [N, D] and their classes [N]."""
        check_name("output", self.output, OUTPUTS)
        x, codes = self._checked(X, y)
        embedder = self._fit_posterior(x, codes)
        self.encoder_ = Encoder.of(embedder)
        self._n_outputs = embedder.fitted_.head.n_outputs
        return self

    def transform(self, X: Any) -> Array:
        """[N, Z + 2], [N, Z] or [N, 2], in the type of the rows."""
        x = self._seen(X)
        parts = [self.encoder_(batch) for batch in batches_of(x)]
        columns = []
        for part in parts:
            numbers = np.stack([part.trace.cpu().numpy(), part.epistemic.cpu().numpy()], 1)
            wanted = {"embedding": [part.mean.cpu().numpy()], "numbers": [numbers]}
            wanted["both"] = wanted["embedding"] + wanted["numbers"]
            columns.append(np.concatenate(wanted[self.output], 1))
        found: Array = np.concatenate(columns).astype(x.dtype)
        return found

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """Names of the columns."""
        embedding = [f"embedding{i}" for i in range(self._n_outputs)]
        names = {"embedding": embedding, "numbers": [*NUMBERS], "both": [*embedding, *NUMBERS]}
        return np.array(names[self.output], dtype=object)
