"""``python -m laplace_metric`` is ``laplace-metric``."""

import sys

from laplace_metric.cli import main

sys.exit(main())
