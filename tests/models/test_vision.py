"""timm, torchvision and open_clip, in a process of their own.

A torchvision whose kernels do not load breaks every package that imports it where it can, so these
packages may stand in a folder of their own, which ``LAPLACE_METRIC_VISION`` names.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = os.environ.get("LAPLACE_METRIC_VISION")
PACKAGES = ("timm", "open_clip", "torchvision")


@pytest.mark.skipif(
    not FOLDER and not all(map(find_spec, PACKAGES)),
    reason="the extra 'models' is not installed, here or in a folder LAPLACE_METRIC_VISION",
)
def test_vision_models():
    given = os.environ.get("PYTHONPATH")
    path = os.pathsep.join(filter(None, [str(ROOT), FOLDER and os.path.abspath(FOLDER), given]))
    command = [sys.executable, "-m", "pytest", "tests/models/vision", "-o", "python_files=check_*"]
    ran = subprocess.run(
        [*command, "-p", "no:cacheprovider", "-rs"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    skipped = [line for line in ran.stdout.splitlines() if line.startswith("SKIPPED")]
    assert all("no real images" in line for line in skipped), skipped
