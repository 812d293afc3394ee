"""What heads are trained with.

_csd          similarity of two Gaussians, and its search by any vector engine
_contrastive  losses over all pairs of a batch; VIB
_inclusion    is one Gaussian inside another? As a density
_regions      the same with texts as regions, whose volume is what they name
_objectives   weighted sums of these, one class a method
"""

from laplace_metric.image_text.losses._contrastive import (
    multi_positive_infonce,
    pairwise_sigmoid_loss,
    soft_contrastive_loss,
    vib_divergence,
)
from laplace_metric.image_text.losses._csd import csd, csd_gallery, csd_query, csd_similarity
from laplace_metric.image_text.losses._inclusion import (
    entailed,
    inclusion_contrast,
    inclusion_difference,
    inclusion_loss,
    log_inclusion,
)
from laplace_metric.image_text.losses._objectives import (
    CLIP,
    OBJECTIVES,
    Objective,
    PCMEPlusPlus,
    ProLIP,
    ProLIPRegions,
    SigLIP,
)
from laplace_metric.image_text.losses._regions import conditional_loss, log_membership, size_loss

__all__ = [
    "CLIP",
    "OBJECTIVES",
    "Objective",
    "PCMEPlusPlus",
    "ProLIP",
    "ProLIPRegions",
    "SigLIP",
    "conditional_loss",
    "csd",
    "csd_gallery",
    "csd_query",
    "csd_similarity",
    "entailed",
    "inclusion_contrast",
    "inclusion_difference",
    "inclusion_loss",
    "log_inclusion",
    "log_membership",
    "multi_positive_infonce",
    "pairwise_sigmoid_loss",
    "size_loss",
    "soft_contrastive_loss",
    "vib_divergence",
]
