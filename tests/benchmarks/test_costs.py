"""How servers, fits and devices are measured."""

from __future__ import annotations

import copy
import json
import os
import time

import pytest
import torch

from benchmarks.costs.on_device import fit, parts_of, waiting_lines
from benchmarks.costs.serve import compared
from benchmarks.costs.served_problems import N_QUERIES, PROBLEMS, _texts
from benchmarks.records import read_record
from benchmarks.registry import COMMANDS, chosen, load_piece, main, parser, repeated
from benchmarks.sizes import ON_DEVICE
from benchmarks.timing import in_limited_process, slope
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


def test_a_part_that_fails_or_takes_too_long_is_an_error_with_its_reason():
    assert in_limited_process(60, divmod, 7, 2) == (3, 1)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        in_limited_process(60, divmod, 7, 0)
    with pytest.raises(RuntimeError, match="code 3"):
        in_limited_process(60, os._exit, 3)
    with pytest.raises(TimeoutError, match="after 1 s"):
        in_limited_process(1, time.sleep, 60)


def test_a_size_chooses_its_pieces():
    of = lambda *words: chosen(COMMANDS["costs"], parser("costs").parse_args(words))  # noqa: E731
    assert of("--size", "gpu") == ["on-device"]
    assert of("--size", "smoke") == ["on-device", "points"]
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


def test_fits_of_points_are_measured_at_the_smallest_size(tmp_path):
    words = ["costs", "--pieces", "points", "--size", "smoke", "--output", str(tmp_path)]
    assert main([*words, "--cache", str(tmp_path)]) == 0
    record = read_record("points", tmp_path)
    assert [(row["structure"], row["n"]) for row in record["rows"]] == [
        ("diag", 500), ("diag", 2_000), ("kron", 500), ("kron", 2_000),
    ]  # fmt: skip
    assert all(row["peak_mb"] >= row["base_mb"] > 0 for row in record["rows"])
    assert all(min(row["own_peak_mb"], row["kept_mb"]) > 10 for row in record["rows"])
    assert set(record["slopes"]) == {"diag", "kron"}


def test_growth_is_the_slope_of_the_logarithms():
    assert slope([10, 100, 1000], [2, 200, 20_000]) == pytest.approx(2)
    assert slope([10, 10], [1, 2]) is None


def test_every_piece_is_a_command():
    for name, command in COMMANDS.items():
        options = parser(name).parse_args([])
        assert repeated(command, options) == (["--size", command.sizes[0]] if command.sizes else [])
        for module in command.pieces.values():
            assert callable(load_piece(module))
