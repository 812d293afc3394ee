"""How servers and peers are measured."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from benchmarks.costs.on_device import fit, parts_of, waiting_lines
from benchmarks.costs.serve import compared
from benchmarks.costs.served_problems import N_QUERIES, PROBLEMS, _texts
from benchmarks.records import read_record
from benchmarks.registry import COMMANDS, chosen, parser
from benchmarks.sizes import ON_DEVICE
from benchmarks.timing import in_limited_process
from laplace_metric import LaplaceEmbedder


@pytest.fixture(scope="module")
def alone():
    g = torch.Generator().manual_seed(0)
    y = torch.arange(300) % 6
    x = torch.nn.functional.one_hot(y, 8) + 0.4 * torch.randn(300, 8, generator=g)
    embedder = LaplaceEmbedder.from_embeddings(x[:100], y[:100])
    index = embedder.index(x[100:200], y[100:200], progress=False)
    index.calibrate(x[200:290], y[200:290])
    return [index.search(x[row : row + 1], 3) for row in range(290, 294)]


def answer(result) -> dict:
    rows = zip(
        result.ids[0].tolist(),
        result.distance[0].tolist(),
        result.match_probability[0].tolist(),
        strict=True,
    )
    return {"neighbours": [dict(zip(("id", "distance", "match_probability"), row, strict=True))
                           for row in rows]}  # fmt: skip


def test_what_is_compared(alone):
    answers = [(row, 200, 0.1, answer(result)) for row, result in enumerate(alone)]
    assert compared(answers, alone) == {"lost": 0, "other_neighbours": 0, "largest_gap": 0.0}
    moved = copy.deepcopy(answers)
    moved[1][3]["neighbours"][2]["distance"] += 0.25
    moved[2][3]["neighbours"][0]["match_probability"] -= 0.125
    moved[3][3]["neighbours"].reverse()
    moved.append((0, 503, 0.1, {"error": "busy"}))
    found = compared(moved, alone)
    assert (found["lost"], found["other_neighbours"]) == (1, 1)
    assert found["largest_gap"] >= 0.25
    assert compared(moved[:3], alone)["largest_gap"] == pytest.approx(0.25)
    assert compared([moved[2]], alone)["largest_gap"] == pytest.approx(0.125)


def test_texts_that_are_asked_are_not_among_the_items(tmp_path):
    problem = PROBLEMS["texts, MiniLM"]
    table, queries = _texts(problem, tmp_path, tmp_path)
    items = table.read_text(encoding="utf-8")
    assert len(items.splitlines()) > problem.items
    assert len(queries.contents) == N_QUERIES
    assert queries.kind == "application/json"
    assert queries.batch([3, 5]) == [queries.inputs[3], queries.inputs[5]]
    assert json.loads(queries.contents[3]) == {"texts": [queries.inputs[3]]}
    assert not any(f"{text}," in items for text in queries.inputs)


ROOT = Path(__file__).resolve().parents[2]


PYTHON = os.environ.get("LAPLACE_PYTHON")  # of an environment that has laplace-torch


@pytest.fixture(autouse=True)
def _checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


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


def test_a_guard_keeps_its_precision_with_an_index_that_finds_a_part():
    rows = read_record("guard-partial")["rows"]
    assert {row["index"] for row in rows if row["found"] < 0.7} == {"IVF64,Flat", "IVF32,PQ8"}
    for row in rows:
        assert row["right"] >= 0.95
        assert abs(row["told"] - row["answered"]) < 0.05


def test_a_part_that_fails_or_takes_too_long_is_an_error_with_its_reason():
    assert in_limited_process(60, divmod, 7, 2) == (3, 1)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        in_limited_process(60, divmod, 7, 0)
    with pytest.raises(RuntimeError, match="code 3"):
        in_limited_process(60, os._exit, 3)
    with pytest.raises(TimeoutError, match="after 1 s"):
        in_limited_process(1, time.sleep, 60)


def test_a_size_chooses_its_pieces():
    of = lambda *words: chosen(COMMANDS["speed"], parser("speed").parse_args(words))  # noqa: E731
    assert of("--size", "gpu") == of("--size", "smoke") == ["on-device"]
    assert "limits" in of()
    assert "on-device" not in of()


def test_the_stages_of_a_fit_on_a_device_are_those_of_the_code():
    size = ON_DEVICE["smoke"]
    (row,) = fit(size, "cpu", size.fits[0])
    inside = {"read", "left_one_out", "novelty_units", "fit"}
    assert inside | {"collect_points", "pass 1", "pass 4", "posterior_of"} < set(row["stages"])
    assert sum(row["stages"][name] for name in inside) < row["stages"]["with_near_far"]
    with waiting_lines() as found:
        pass
    assert not found
    assert set(parts_of(size)) > {"agreement", "waits", "embed", "blocks", "kernels"}
