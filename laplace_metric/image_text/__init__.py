"""Images and texts as Gaussians on one sphere, after ProLIP (Chun et al. 2025).

Data flow, a file a step::

    ImageTextPairs            _pairs        images, texts, who belongs to whom (many to many)
      -> features [N, F]      _pairs        of each encoder, once where it is frozen;
         or [N, 2, F]         _published    [CLS] for mu, [UNC] for log v: checkpoints of ProLIP
      -> h, z, log v          _heads        mu = z / |z|, S = diag(v), one head a tower
      -> loss                 _objectives   over all pairs of a batch (closed forms: _gaussians)
      -> trained heads        _training     one step, means and variances monitored
      -> posterior            _curvature    N(W, (n_eff H + tau I)^-1), H over all N M pairs
      -> Embedding, Index     _towers       ambiguity = tr S (learnt), epistemic = tr Cov[mu];
                                            texts find images, images find texts
      -> files                _files        heads, posterior, history
      -> is it inside?        _includes     inc with a probability and its random-pair control
      -> which class?         _zero_shot    prompts as classes, their weights
      -> which pair is wrong? _noisy_pairs  scores by models that have not seen the image

``_embedder`` is the public class around all of it.
tr S reports how general or ambiguous an input is, tr Cov[mu] how little the pairs determine it.
"""

from laplace_metric.image_text._embedder import ImageTextEmbedder
from laplace_metric.image_text._gaussians import (
    Inclusion,
    csd,
    csd_gallery,
    csd_query,
    csd_similarity,
    inclusion_difference,
    inclusion_score,
    log_inclusion,
)
from laplace_metric.image_text._noisy_pairs import noisy_pairs
from laplace_metric.image_text._objectives import (
    CLIP,
    Objective,
    PCMEPlusPlus,
    ProLIP,
    ProLIPRegions,
    SigLIP,
    inclusion_loss,
    multi_positive_infonce,
    pairwise_sigmoid_loss,
    vib_divergence,
)
from laplace_metric.image_text._pairs import ImageTextPairs
from laplace_metric.image_text._published import load_prolip
from laplace_metric.image_text._zero_shot import prompt_filter, prompt_weights, zero_shot

__all__ = [
    "CLIP",
    "ImageTextEmbedder",
    "ImageTextPairs",
    "Inclusion",
    "Objective",
    "PCMEPlusPlus",
    "ProLIP",
    "ProLIPRegions",
    "SigLIP",
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
    "noisy_pairs",
    "pairwise_sigmoid_loss",
    "prompt_filter",
    "prompt_weights",
    "vib_divergence",
    "zero_shot",
]
