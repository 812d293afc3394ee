"""A small share of the tables; checkpoints of fits have kill tests of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ATTACKS = {
    "values": (
        *("--writers", "python", "--kills", "3", "--damages", "45", "--disks", "1", "--races", "1"),
        *(
            "--only",
            "LaplaceEmbedder",
            "Guard",
            "Rule",
            "Monitor",
            "Statistics",
            "baseline",
            "Index",
            "feature",
        ),
    ),
    "commands": (
        *("--writers", "commands", "--kills", "6", "--disks", "2"),
        *("--only", "fit", "index", "image-text"),
    ),
    "links": ("--links", "5", "--only", "Guard", "save_pretrained", "fit", "image-text"),
}


@pytest.mark.skipif(os.name != "posix", reason="forks and kills")
@pytest.mark.parametrize("options", ATTACKS.values(), ids=ATTACKS)
def test_nothing_is_lost_left_wrong_touched_or_unnamed(options):
    """In a process of its own, with one thread: it forks."""
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-m", "tests.damage", *options],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"},
        cwd=root,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "**all**" in done.stdout
