"""Images and texts as Gaussians on one sphere, after ProLIP (Chun et al. 2025).

Data flow, from files of this folder::

    ImageTextPairs            _pairs        images, texts, who belongs to whom (many to many)
      -> features [N, F]      _encoder_features of each encoder, once where frozen;
         or [N, 2, F]         _published    [CLS] for mu, [UNC] for log v: checkpoints of ProLIP
                                            (their networks: _prolip_towers)
      -> h, z, log v          _head         mu = z / |z|, S = diag(v), one head a tower
      -> loss                 _objectives   sums of _losses over all pairs of a batch, of the closed
                                            forms of _csd, _inclusion and _membership
      -> trained heads        _training     one step; means and variances monitored (_spread)
         or given ones        _projections  of a CLIP or SigLIP; published posteriors of them:
                                            _projection_factors
      -> posterior            _tower_posterior  N(W, (n_eff H + tau I)^-1), H over all N M pairs
                                            (_sigmoid_curvature, _softmax_curvature)
      -> Embedding, Index     _towers       ambiguity = tr S (learnt), weight_variance = tr Cov[mu];
                                            and distances in a search
      -> files                _files        heads, posterior, history
      -> is it inside?        _inclusion_calibration   inc as a probability, and random pairs
      -> which class?         _zero_shot    classes from _prompts and their _prompt_weights
      -> which pair is wrong? _noisy_pairs  scores by models that have not seen the image

``_embedder`` is the public class around all of it.
tr S reports how general or ambiguous an input is, tr Cov[mu] how little the pairs determine it.
"""

from laplace_metric.image_text._embedder import ImageTextEmbedder
from laplace_metric.image_text._inclusion_calibration import Inclusion
from laplace_metric.image_text._noisy_pairs import noisy_pairs
from laplace_metric.image_text._pairs import ImageTextPairs
from laplace_metric.image_text._prompt_weights import prompt_filter, prompt_weights
from laplace_metric.image_text._published import load_prolip
from laplace_metric.image_text._zero_shot import zero_shot
from laplace_metric.image_text.objectives._csd import csd, csd_gallery, csd_query, csd_similarity
from laplace_metric.image_text.objectives._inclusion import (
    inclusion_difference,
    inclusion_score,
    log_inclusion,
)
from laplace_metric.image_text.objectives._losses import (
    inclusion_loss,
    multi_positive_infonce,
    pairwise_sigmoid_loss,
    vib_divergence,
)
from laplace_metric.image_text.objectives._objectives import (
    CLIP,
    Objective,
    PCMEPlusPlus,
    ProLIP,
    ProLIPRegions,
    SigLIP,
)
from laplace_metric.image_text.towers._projection_factors import ProjectionFactors

__all__ = [
    "CLIP",
    "ImageTextEmbedder",
    "ImageTextPairs",
    "Inclusion",
    "Objective",
    "PCMEPlusPlus",
    "ProLIP",
    "ProLIPRegions",
    "ProjectionFactors",
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
