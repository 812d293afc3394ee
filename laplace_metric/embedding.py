"""``Embedding``: what every uncertainty method returns for a batch of inputs."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, NoReturn, Protocol

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from laplace_metric._utils.display import Rows, Shown, in_rows
from laplace_metric._utils.precision import full_precision
from laplace_metric._utils.randomness import Seed
from laplace_metric._utils.tables import as_pandas
from laplace_metric._utils.validation import as_array, as_tensor
from laplace_metric.distributions import (
    Concatenated,
    EmbeddingDistribution,
    Gaussian,
    ProjectedNormal,
)
from laplace_metric.errors import (
    EmptyLoaderError,
    InputError,
    NotFittedError,
    RowError,
    WideDrawsWarning,
    callers_line,
)

if TYPE_CHECKING:
    import pandas

WIDE = 0.5
"""Mean squared distance of unit draws from their means above which they are mostly noise."""


class FitSetParts(NamedTuple):
    """Numbers [B] that compare inputs with a fit set; None for those that the fit does not give.

    Parameters
    ----------
    near : Tensor [B] or None
        Evidence of a new class; None if no class of the fit set is known.
    far : Tensor [B]
        Distance from all data of the fit set.
    local : Tensor [B] or None
        Distance from every single point of the fit set; None if it kept none.
    epistemic : Tensor [B]
        Sum of the parts, as ``Embedding.epistemic`` has it.
    """

    near: Tensor | None
    far: Tensor
    local: Tensor | None
    epistemic: Tensor


class HeadInputScore(Protocol):
    """Distance of inputs from a fit set, by what enters the head (``familiarity.NearFar``).

    That of images and texts is a variance under a posterior of weights instead (``of_weights``).
    """

    of_weights: ClassVar[bool]

    def parts(self, features: Tensor) -> FitSetParts:
        """Return near, far, local and epistemic [B]."""

    def ambiguity(self, features: Tensor) -> Tensor | None:
        """Return the entropy of the label [B], None without known classes; or a learnt variance."""


@dataclass(frozen=True, repr=False)
class Embedding(Shown):
    """A batch of uncertain embeddings.

    Parameters
    ----------
    distribution : EmbeddingDistribution
        B distributions over R^Z or over the unit sphere.
    score : Tensor [B] or None
        Uncertainty of each input by the method's own measure. None, the default: the variance.
    head_inputs : Tensor [B, D] or None
        Inputs of the head, stored by reference for ``epistemic``, ``near``, ``far``, ``local`` and
        ``ambiguity``, which are computed when they are first read. None, the default: these raise
        ``NotFittedError``.
    near_far : HeadInputScore or None
        Model of the fit set that computes these numbers from ``head_inputs``. None, the default:
        there is no model.

    Examples
    --------
    >>> from laplace_metric.distributions import Gaussian
    >>> e = Embedding(Gaussian(torch.zeros(2, 3), torch.full((2, 3), 0.5)))
    >>> e.uncertainty
    tensor([1.5000, 1.5000])
    """

    distribution: EmbeddingDistribution
    score: Tensor | None = None
    head_inputs: Tensor | None = None
    near_far: HeadInputScore | None = None

    def _sentence(self) -> str:
        n, z = self.mean.shape
        kind = type(self.distribution).__name__
        return f"{n:,} uncertain embedding{'' if n == 1 else 's'} in {z} dimensions ({kind})."

    def _shown_rows(self) -> Rows:
        known = None
        if self.near_far is not None:
            own = "weight_variance" if self.near_far.of_weights else "near, far, local, epistemic"
            known = f"{own}, ambiguity"
        numbers = ", ".join(filter(None, ["mean, variance, uncertainty, concentration", known]))
        return in_rows({"mean": self.mean, "has": numbers}.items())

    @property
    def mean(self) -> Float[Tensor, "B Z"]:
        """The embedding to search with [B, Z] (unit length on the sphere)."""
        return self.distribution.mean

    @property
    @full_precision()
    def variance(self) -> Float[Tensor, "B Z"]:
        """Expected squared deviation of each coordinate from its ``mean`` [B, Z].

        Its sum over the coordinates is ``uncertainty``, for methods without a score of their own,
        and draws of ``sample`` have it. For vectors it is the variance. For directions it contains
        the squared shift of the expectation, which is shorter than ``mean``.
        """
        return self.distribution.variance

    @property
    @full_precision()
    def uncertainty(self) -> Float[Tensor, " B"]:
        """One number per input [B], larger = less certain.

        The method's own score where it has one, else the expected squared distance of the embedding
        from its mean: the trace of the covariance, or of directions a number from 0 to 2, where a
        uniform one has 2.
        """
        if self.score is not None:
            return self.score
        law = self.distribution
        if isinstance(law, (Gaussian, ProjectedNormal, Concatenated)):
            return law.total_variance
        return law.variance.sum(-1)

    @property
    def epistemic(self) -> Float[Tensor, " B"]:
        """Epistemic number [B]: how little the fit set determines each input.

        The log odds of a new class, plus ``local`` and the distance of the head's input from the
        fit set in length, as far as these are larger than for most known inputs. A logistic
        regression of ``near``, the cosine distance to the nearest fitted input and ``local`` has
        learnt the log odds from the fit set itself, class by class left out. Arrays that are
        compared by direction have no length. In standard deviations, about 0 for known inputs.
        ``familiarity._near_far`` has equations and sources.

        Raises
        ------
        NotFittedError
            If the method or its fit has nothing of the fit set to compare with; for images and
            texts, which have ``weight_variance``.
        NonFiniteError, InputError
            If inputs enter the head as NaN, infinity or zeros.

        Examples
        --------
        >>> from laplace_metric import LaplaceEmbedder
        >>> x, y = torch.rand(40, 8), torch.arange(40) % 4
        >>> e = LaplaceEmbedder.from_embeddings(x, y)(torch.cat([x, -x]))
        >>> bool(e.epistemic[:40].max() < e.epistemic[40:].min())
        True
        """
        return self._distances.epistemic

    @property
    def weight_variance(self) -> Float[Tensor, " B"]:
        """Variance of the mean of images and texts under their posterior [B], ``tr Cov[mu]``.

        How little the fitted pairs determine where an image or a text lies, in squared units of the
        unit sphere. Of ``LaplaceEmbedder`` this variance is ``uncertainty``.

        Raises
        ------
        NotFittedError
            For anything but images and texts with a posterior (``ImageTextEmbedder``).
        """
        score, inputs = self._of_the_fit_set("variance under a posterior of the weights")
        if not score.of_weights:
            raise NotFittedError(
                "weight_variance is of images and texts: read uncertainty, the variance under the "
                "posterior of the head."
            )
        return score.parts(inputs).far

    @property
    def near(self) -> Float[Tensor, " B"]:
        """Evidence of an unknown class [B], in standard deviations of the fit set.

        Distance to the nearest class mean in the directions in which members of a class differ,
        minus the distance of ``far``: large for new classes.

        Raises
        ------
        NotFittedError
            If ``epistemic`` raises it; if every class of the fit set has one member; and for images
            and texts.
        """
        near = self._distances.near
        if near is None:
            raise NotFittedError(
                "near needs classes with several members that differ, and the fit set had none: "
                "read far, or fit with such labels."
            )
        return near

    @property
    def far(self) -> Float[Tensor, " B"]:
        """Distance from all data of the fit set [B], in standard deviations of the fit set.

        Distance to the mean of the fit set under its covariance: large for foreign inputs.

        Raises
        ------
        NotFittedError
            If ``epistemic`` raises it.
        """
        return self._distances.far

    @property
    def local(self) -> Float[Tensor, " B"]:
        """Distance from every single fitted input [B], in standard deviations of the fit set.

        Distance to the nearest of up to 2,500 inputs of the fit set, in the directions in which
        members of a class differ: large for foreign inputs.

        Raises
        ------
        NotFittedError
            If ``epistemic`` raises it; and for images and texts.
        """
        if (local := self._distances.local) is None:
            raise NotFittedError(
                "local compares with inputs of the fit set, and the fit kept none: read epistemic."
            )
        return local

    @property
    def ambiguity(self) -> Float[Tensor, " B"]:
        """Entropy of the label among the classes of the fit set [B], in nats, from 0 to log C.

        The entropy of the label that a Gaussian for each class predicts, with the label noise of
        the fit set (``familiarity._near_far`` has equations and sources). It hardly shrinks with
        data, and says nothing of inputs that the fit set does not know: read ``epistemic`` first.
        An index says more of its own items (``SearchResult.ambiguity``).

        For images and texts (``ImageTextEmbedder``) it is the trace of the variance that their
        heads have learnt, from 0 on: how general or ambiguous an input is.

        Raises
        ------
        NotFittedError
            If ``epistemic`` raises it; if no class of the fit set is known; and for images and
            texts whose objective learns no variance.

        Examples
        --------
        >>> from laplace_metric import LaplaceEmbedder
        >>> g = torch.Generator().manual_seed(0)
        >>> y = torch.arange(200) % 2
        >>> x = torch.nn.functional.one_hot(y, 2) + 0.2 * torch.randn(200, 2, generator=g)
        >>> e = LaplaceEmbedder.from_embeddings(x, y)(torch.tensor([[1.0, 0.0], [0.7, 0.7]]))
        >>> bool(e.ambiguity[0] < 0.1), bool(e.ambiguity[1] > 0.5)
        (True, True)
        """
        return self._label_entropy

    @cached_property
    def _label_entropy(self) -> Tensor:
        score, inputs = self._of_the_fit_set("ambiguity")
        if (entropy := score.ambiguity(inputs)) is None:
            raise NotFittedError(
                "ambiguity needs a class with several members that differ, and the fit set had "
                "none: search an index of labelled items and read result.ambiguity."
            )
        return entropy

    @cached_property
    def _distances(self) -> FitSetParts:
        score, inputs = self._of_the_fit_set("epistemic number")
        if score.of_weights:
            raise NotFittedError(
                "images and texts are not compared with what was fitted: read weight_variance, the "
                "variance of their mean under the posterior."
            )
        return score.parts(inputs)

    def _of_the_fit_set(self, what: str) -> tuple[HeadInputScore, Tensor]:
        if self.head_inputs is None or self.near_far is None:
            raise NotFittedError(
                f"there is no {what} here: it compares with the fit set, which other "
                "methods than Laplace, fits with pairs of batches, over several processes, from "
                "merged statistics or online without a last fit, image-text objectives without a "
                "probability of a pair, files of older versions, head inputs wider than 8,192, "
                "sets of a few points and parts of several fits do not keep. Fit LaplaceEmbedder "
                "with pairs='all' in one process, or train with OnlineLaplace, whose refit is True."
            )
        return self.near_far, self.head_inputs

    @property
    @full_precision()
    def concentration(self) -> Float[Tensor, " B"]:
        """von Mises-Fisher concentration of the direction [B], in [0, inf]."""
        return self.distribution.concentration

    def to_pandas(self, *, means: bool = False) -> pandas.DataFrame:
        """Return a table of one row an embedding: uncertainty, and the numbers of the fit set.

        Parameters
        ----------
        means : bool
            True adds the coordinates, as columns mean_0, mean_1 and so on; default False.

        Raises
        ------
        MissingPackageError
            If pandas is not installed.
        NonFiniteError, InputError
            If ``uncertainty`` or ``epistemic`` raises them.

        Examples
        --------
        >>> from laplace_metric import LaplaceEmbedder
        >>> x = torch.randn(40, 8)
        >>> e = LaplaceEmbedder.from_embeddings(x, torch.arange(40) % 4)(x)
        >>> list(e.to_pandas().columns)
        ['uncertainty', 'near', 'far', 'local', 'epistemic', 'ambiguity']
        """
        columns = {"uncertainty": self.uncertainty}
        for name in ("near", "far", "local", "epistemic", "weight_variance", "ambiguity"):
            try:
                columns[name] = getattr(self, name)
            except NotFittedError:  # the fit kept nothing to compare with, or knows no class
                continue
        if means:
            columns |= {f"mean_{i}": column for i, column in enumerate(self.mean.unbind(1))}
        return as_pandas({name: x.detach().cpu().numpy() for name, x in columns.items()})

    @full_precision()
    def sample(self, n: int, seed: Seed = None) -> Float[Tensor, "n B Z"]:
        """Return draws [n, B, Z], independent between inputs.

        For draws that share their weights between inputs use the method's ``sample``.

        Parameters
        ----------
        n : int
            Number of draws for each input, at least 0.
        seed : torch.Generator, int or None
            Generator or seed of the draws. None, the default: torch's global generator.

        Warns
        -----
        WideDrawsWarning
            If directions are so uncertain that draws lie more than .5 from their means, in the mean
            squared distance.
        """
        draws = self.distribution.sample(n, seed)
        law = self.distribution
        parts = law.parts if isinstance(law, Concatenated) else (law,)
        if isinstance(parts[0], ProjectedNormal):
            # a draw is 0 outside the block of its part, where its own mean is sqrt(M) times this
            warn_if_wide(draws, self.mean * len(parts) ** 0.5)
        return draws

    def __len__(self) -> int:
        return len(self.mean)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NoReturn:
        """Refuse ``np.asarray(embedding)``: a batch has several arrays.

        Raises
        ------
        InputError
            It names the arrays.
        """
        raise InputError(
            f"{len(self)} uncertain embeddings are several arrays: pass embedding.mean, the "
            f"vectors {list(self.mean.shape)}, or embedding.variance, embedding.uncertainty."
        )

    def __getitem__(self, index: Any) -> Embedding:
        """Return a part: slice, boolean mask, index tensor, or a number for a batch of 1.

        Raises
        ------
        InputError
            If ``index`` is anything else.
        RowError
            If the batch does not have a row.
        """
        rows = _as_rows(index, len(self))
        score = None if self.score is None else self.score[rows]
        h = None if self.head_inputs is None else self.head_inputs[rows]
        return Embedding(self.distribution.select(rows), score, h, self.near_far)

    @classmethod
    def concatenate(cls, parts: Sequence[Embedding]) -> Embedding:
        """Join batches of the same method into one.

        Raises
        ------
        EmptyLoaderError
            If ``parts`` is empty.
        InputError
            If ``parts`` are not embeddings of one kind and size.
        """
        if not isinstance(parts, (list, tuple)) or not all(isinstance(p, cls) for p in parts):
            raise InputError(f"parts={parts!r:.60}: pass a list of Embedding.")
        if not parts:
            raise EmptyLoaderError("no embeddings to concatenate: the loader yielded no batch.")
        kinds = {(type(p.distribution).__name__, p.mean.shape[-1], p.score is None) for p in parts}
        if len(kinds) > 1:
            raise InputError(
                f"parts are of several kinds (distribution, size, without score): {sorted(kinds)}. "
                "Pass embeddings of one method."
            )
        kind = type(parts[0].distribution)
        distribution = kind.concatenate([part.distribution for part in parts])
        scores = [part.score for part in parts if part.score is not None]
        score = torch.cat(scores) if scores else None
        inputs = [part.head_inputs for part in parts if part.head_inputs is not None]
        near_far = parts[0].near_far
        if len(inputs) < len(parts) or any(part.near_far is not near_far for part in parts):
            return cls(distribution, score)
        return cls(distribution, score, torch.cat(inputs), near_far)


def warn_if_wide(draws: Float[Tensor, "n B Z"], mean: Float[Tensor, "B Z"]) -> None:
    """Warn if unit draws lie further than ``WIDE`` from their means.

    Parameters
    ----------
    draws : Tensor [n, B, Z]
        Draws of length 1 for each of B inputs.
    mean : Tensor [B, Z]
        Mean direction of each input.
    """
    spread = float(2 - 2 * (draws * mean).sum(-1).mean()) if draws.numel() else 0.0
    if spread > WIDE:
        warnings.warn(
            f"draws lie {spread:.2g} from their means (mean squared; uniform directions have 2): "
            "they are mostly noise. These inputs are far from what was fitted, or the posterior is "
            "too wide: fit with a smaller temperature= than embedder.posterior_.temperature.",
            WideDrawsWarning,
            stacklevel=callers_line(),
        )


def _as_rows(index: Any, n: int) -> slice | Tensor:
    """Return the rows of a batch of n as a slice, a mask [n] or whole numbers [m]."""
    if isinstance(index, slice):
        try:
            return slice(*index.indices(n))
        except (TypeError, ValueError) as error:
            raise InputError(f"index={index!r}: {error}.") from error
    if isinstance(index, (int, np.integer)) and not isinstance(index, bool):
        if not -n <= index < n:  # also 2^70, which no tensor holds
            raise RowError(f"index={index}: the batch has the rows 0 to {n - 1}.")
        index = [index]
    values = index if isinstance(index, Tensor) else as_array("index", index)
    rows = as_tensor("index", values)
    if str(values.dtype).endswith("bool"):
        rows = rows.bool()
        if rows.shape != (n,):
            raise InputError(f"index is a mask of shape {tuple(rows.shape)}: pass [{n}].")
        return rows
    if rows.ndim != 1 or (rows.is_floating_point() and len(rows)):
        raise InputError(f"index={index!r:.60}: pass a slice, a mask [{n}] or whole numbers [m].")
    if len(rows) and not -n <= int(rows.min()) <= int(rows.max()) < n:
        raise RowError(f"index={index!r:.60}: the batch has the rows 0 to {n - 1}.")
    return rows.long()
