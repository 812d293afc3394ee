"""What can be done with a fit: tune its prior, measure inputs, save it, export it.

Each is a part of ``LaplaceEmbedder``, in a file of its own.
"""

from laplace_metric.laplace.after_fit._exportable import Exportable
from laplace_metric.laplace.after_fit._measures import Measures
from laplace_metric.laplace.after_fit._saved import Saved
from laplace_metric.laplace.after_fit._tuned_prior import TunedPrior

__all__ = ["Exportable", "Measures", "Saved", "TunedPrior"]
