"""x"""

from laplace_metric.image_text._csd import csd, csd_gallery, csd_query, csd_similarity
from laplace_metric.image_text._inclusion import (
    inclusion_contrast,
    inclusion_difference,
    inclusion_loss,
    log_inclusion,
)
from laplace_metric.image_text._losses import (
    multi_positive_infonce,
    pairwise_sigmoid_loss,
    soft_contrastive_loss,
    vib_divergence,
)
