"""Every benchmark: ``python -m benchmarks PROTOCOL ... --data DIR --cache DIR --size small``."""

from __future__ import annotations

import sys

from benchmarks.command import main

if __name__ == "__main__":
    sys.exit(main())
