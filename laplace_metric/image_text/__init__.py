"""Images and texts as Gaussians on one sphere, after ProLIP (Chun et al. 2025).

Data flow, a file a step::

    ImageTextPairs            _pairs       images, texts, who belongs to whom (many to many)
      -> features [N, F]      _encoding    of each encoder, once where it is frozen
         or [N, 2, F]         towers       encoders of our own: [CLS] for mu, [UNC] for log v
                              published    checkpoints of ProLIP
      -> h, z, log v          _heads       mu = z / |z|, S = diag(v), one head a tower
      -> loss                 losses       over all pairs of a batch (a room of its own)
         of what is left      _masked      of inputs after masking, if the objective asks
      -> trained heads        _training    one step; _spread watches means and variances; _fit
      -> posterior            posterior    N(W, (n_eff H + tau I)^-1), H over all N M pairs
      -> Embedding            _embedder    ambiguity = tr S (learnt), epistemic = tr Cov[mu]
      -> Index                _search      texts find images, images find texts
      -> files                _files       heads, posterior, history
      -> is it inside?        _includes    inc with a probability and its random-pair control
      -> answers              uses         traversal, zero-shot, wrong pairs (a room of its own)

tr S says how general or ambiguous an input is, tr Cov[mu] how little the pairs determine it.
"""

from laplace_metric.image_text._csd import (
    csd,
    csd_gallery,
    csd_query,
    csd_similarity,
    inclusion_difference,
    inclusion_loss,
    log_inclusion,
    multi_positive_infonce,
    pairwise_sigmoid_loss,
    vib_divergence,
)
from laplace_metric.image_text._embedder import ImageTextEmbedder
from laplace_metric.image_text._includes import Inclusion, inclusion_score
from laplace_metric.image_text._objectives import (
    CLIP,
    Objective,
    PCMEPlusPlus,
    ProLIP,
    ProLIPRegions,
    SigLIP,
)
from laplace_metric.image_text._pairs import ImageTextPairs
from laplace_metric.image_text._published import load_prolip
from laplace_metric.image_text._towers import ImageTransformer, TextTransformer

__all__ = [
    "CLIP",
    "ImageTextEmbedder",
    "ImageTextPairs",
    "ImageTransformer",
    "Inclusion",
    "Objective",
    "PCMEPlusPlus",
    "ProLIP",
    "ProLIPRegions",
    "SigLIP",
    "TextTransformer",
    "csd",
    "csd_gallery",
    "csd_query",
    "csd_similarity",
    "inclusion_difference",
    "inclusion_loss",
    "inclusion_score",
    "load_prolip",
    "log_inclusion",
    "multi_positive_infonce",
    "pairwise_sigmoid_loss",
    "vib_divergence",
]
