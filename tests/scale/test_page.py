"""The page on scale: each of its ways to fit runs, and ends with the same posterior.

The block for Ray runs in ``test_ray``.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from laplace_metric import LaplaceEmbedder
from tests.scale.data import difference
from tests.scale.page import PAGE, blocks, run


@pytest.fixture
def scope(tmp_path, monkeypatch) -> dict:
    """What the blocks that need nothing leave; in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return run({})


def check(fitted: LaplaceEmbedder, scope: dict) -> None:
    whole = LaplaceEmbedder(scope["model"]).fit(scope["digits"].loader(256), progress=False)
    a, b = (x.hessian_.diagonal().double() for x in (fitted, whole))
    assert difference(a, b) < 1e-4  # a float32 model: its features and sums


def test_the_code_runs_in_order(scope):
    check(scope["embedder"], scope)
    assert Path("fit/checkpoint.safetensors").exists()


def test_every_block_is_run_somewhere():
    names = {"", "torchrun", "ray", "pyspark"}
    assert sum(len(blocks(name)) for name in names) == PAGE.read_text().count("```python")
    for target in re.findall(r"\]\(([^)]+)\)", PAGE.read_text()):
        assert (PAGE.parent / target).is_file(), target


def test_several_processes(scope):
    (script,) = blocks("torchrun")
    Path("fit.py").write_text(script)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    subprocess.run(
        [*launcher, "--nproc-per-node", "2", "fit.py"],
        check=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    check(LaplaceEmbedder.load("p.safetensors", scope["model"]), scope)


def test_spark(scope):
    pytest.importorskip("pyspark", reason="PySpark is not installed")
    if shutil.which("java") is None:
        pytest.skip("PySpark needs Java")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        run(scope, "pyspark")
    check(scope["plan"].result(), scope)
    scope["spark"].stop()
