"""Every benchmark: ``python -m benchmarks NAME [options]``."""

from __future__ import annotations

import sys

from benchmarks.registry import main

if __name__ == "__main__":
    sys.exit(main())
