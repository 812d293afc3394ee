"""How peers are measured: problem files, caps, failures; and laplace-torch itself where it is."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parents[2]
PYTHON = os.environ.get("LAPLACE_PYTHON")  # of an environment that has laplace-torch


@pytest.fixture(autouse=True)
def _checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


def test_batches_stop_at_the_cap() -> None:
    from benchmarks.costs.peers.problem import Batches

    x = torch.arange(10.0).unsqueeze(1)
    whole = Batches(x, x, 4, seconds=60.0)
    assert [len(a) for a, _ in whole] == [4, 4, 2]
    assert whole.points == 10
    capped = Batches(x, x, 4, seconds=0.0)
    assert [len(a) for a, _ in capped] == [4]  # one batch is always given
    assert capped.points == 4
    assert len(capped.dataset) == 10


def test_repeated_keeps_the_least_time_of_whole_runs() -> None:
    from benchmarks.costs.peers.problem import repeated

    waits = iter((0.05, 0.0, 0.02))

    def run() -> int:
        time.sleep(next(waits))
        return 7

    numbers = repeated(run, 7, repeats=3, seconds=60.0)
    assert numbers["seconds"] < 0.02
    assert numbers["points"] == 7
    assert next(waits, None) is None
    assert repeated(lambda: 3, 7, repeats=3, seconds=60.0)["points"] == 3


def test_a_failure_names_the_bytes() -> None:
    from benchmarks.costs.peers.problem import failure

    text = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 17247043584 bytes."
    assert failure("fit", "RuntimeError", text)["error"]["bytes"] == 4 * 65_664**2
    assert failure("fit", "ValueError", "")["error"]["bytes"] is None


@pytest.mark.skipif(PYTHON is None, reason="LAPLACE_PYTHON names no python with laplace-torch")
def test_laplace_torch_gives_the_closed_form_variance(tmp_path: Path) -> None:
    from benchmarks.costs.peers.problem import random_problem

    problem = random_problem(tmp_path / "problem.safetensors", 60, 8, n_features=5, n_outputs=3)
    command = [str(PYTHON), "-m", "benchmarks.costs.peers.laplace_torch", "--problem", str(problem)]
    command += ["--predict", "fast", "--variance", str(tmp_path / "variance.safetensors")]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    row = json.loads(done.stdout.splitlines()[-1])
    assert (row["fit_points"], row["predict_points"]) == (60, 8)
    given = load_file(problem)
    expected = given["queries"].square() @ (1 / (1 + given["features"].square().sum(0))) + 1 / 61
    variance = load_file(tmp_path / "variance.safetensors")["variance"]
    assert torch.allclose(variance, expected[:, None].expand(8, 3))
