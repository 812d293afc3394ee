"""``python -m laplace_metric`` is ``laplace-metric``."""

from __future__ import annotations

import sys

from laplace_metric.cli import main

sys.exit(main())
