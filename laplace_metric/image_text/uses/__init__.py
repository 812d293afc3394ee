"""Uses of embeddings of images and texts, a file a use.

    _traversal       from [ROOT] to an image, through the texts on the way
    _zero_shot       classes as texts: ensembles of prompts, and the most certain of them
    _prompt_weights  which prompts describe a few images (Dirichlet prior, EM)
    _noisy_pairs     which pairs of a data set are wrong, by models that have not seen them

All take ``Embedding``s, so that they work with any embedder and, without variances, fall back on
the cosine where there is such a thing.
"""

from laplace_metric.image_text._noisy_pairs import PairScores, noisy_pairs
from laplace_metric.image_text._traversal import (
    Traversal,
    inclusion_root,
    traversal,
    traversal_scores,
)
from laplace_metric.image_text._zero_shot import (
    PromptWeights,
    class_embeddings,
    prompt_filter,
    prompt_weights,
    zero_shot,
)

__all__ = [
    "PairScores",
    "PromptWeights",
    "Traversal",
    "class_embeddings",
    "inclusion_root",
    "noisy_pairs",
    "prompt_filter",
    "prompt_weights",
    "traversal",
    "traversal_scores",
    "zero_shot",
]
