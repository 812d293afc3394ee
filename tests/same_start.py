"""Every test and every example begins alike, whichever ran before it and whoever started them.

``pytest -p tests.same_start`` seeds the global random states before each. ``LAPLACE_METRIC_SEED=7``
begins from others: what fails then depends on luck. A process in the background inherits that
Ctrl-C is ignored, and so would the commands that tests interrupt: it counts again.
"""

from __future__ import annotations

import os
import random
import signal

import numpy as np
import pytest
import torch

SEED = int(os.environ.get("LAPLACE_METRIC_SEED", "0"))


def pytest_configure() -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:  # several processes of one thread each are faster
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    random.seed(SEED)
    np.random.seed(SEED)  # noqa: NPY002
    torch.manual_seed(SEED)
