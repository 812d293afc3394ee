"""The pieces of `scale` run at their smoke sizes and share one record; the picture draws it."""

from __future__ import annotations

import pytest
import torch

from benchmarks.records import read_record
from benchmarks.registry import COMMANDS, chosen, load_piece, main, parser, repeated
from benchmarks.scale import common
from benchmarks.scale.billion import Cluster
from benchmarks.sizes import SMALL_PROBLEM
from benchmarks.tables import ROOT
from benchmarks.timing import slope
from laplace_metric.curvature._layer_sums import Diagonal
from laplace_metric.curvature._layered_term import LayeredTerm
from laplace_metric.curvature._passes import class_chunks
from laplace_metric.curvature.by_class import ClassSums
from laplace_metric.heads._backends import jacobian_of

PAGE = ROOT / "benchmarks" / "README.md"

PIECES = ("points", "memory", "margin", "gallery", "device")


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scale")
    for name in (*PIECES, "figure"):
        words = ["scale", "--pieces", name, "--size", "smoke", "--output", str(folder)]
        assert main(words) == 0
    assert all((folder / f"scale.{kind}").stat().st_size > 5_000 for kind in ("png", "svg"))
    return read_record("scale", folder)


def test_each_piece_has_its_part_and_says_what_it_ran_on(record):
    assert set(record) == {"environment", "points", "memory", "margin", "gallery", "device cpu"}
    for name in set(record) - {"environment"}:
        assert record[name]["budget"] == "smoke"
        assert record[name]["environment"]["threads"] == torch.get_num_threads()


def test_references_are_as_far_off_as_they_say(record):
    part = record["margin"]
    wide, narrow = part["errors"]
    assert narrow["relative_error"] < wide["relative_error"]
    assert all(0.2 < row["in_standard_errors"] < 5 for row in part["errors"])
    assert all(row["relative_standard_error"] > 0 for row in part["reference"])
    last = part["exact"][-1]
    hours = last["wall_seconds"] * (1_000_000 / last["n"]) ** 2 / 3600
    assert part["extrapolated_exact_hours"]["hours"] == pytest.approx(hours)


def test_shards_share_the_points_and_every_pass_is_the_same():
    whole = common.Points(900, SMALL_PROBLEM)
    x, labels = whole.together()
    shards = [common.Points(900, SMALL_PROBLEM, shard=i, n_shards=2) for i in (0, 1)]
    parts = [shard_batch for pair in zip(*shards, strict=False) for shard_batch in pair]
    assert torch.equal(torch.cat([part for part, _ in parts]), x[:800])
    assert sum(len(y) for shard in shards for _, y in shard) == 900
    assert torch.equal(whole.together()[0], x)
    assert torch.equal(whole.together()[1], labels)


def test_every_piece_is_a_command():
    for name, command in COMMANDS.items():
        options = parser(name).parse_args([])
        assert repeated(command, options) == (["--size", command.sizes[0]] if command.sizes else [])
        for module in command.pieces.values():
            assert callable(load_piece(module))
    scale = COMMANDS["scale"]
    assert chosen(scale, parser("scale").parse_args([])) == list(scale.pieces)


def test_the_numbers_of_the_text_about_cross_blocks():
    """What the pages say of many classes, beside their tables."""
    head = jacobian_of(torch.nn.Linear(512, 128), 128)
    classes = ClassSums.of(torch.arange(1_000))
    tiles = LayeredTerm(head, True, [Diagonal()]).tiles()
    assert 1_000 < sum(len(list(class_chunks(classes, tile))) for tile in tiles) < 5_000
    paper = Cluster()
    jacobians = 8 * paper.n_classes * paper.n_outputs**2 * paper.columns
    assert f"{jacobians / 1e15:.1f} petabytes" in PAGE.read_text()
    assert f"{4 * paper.class_bytes / 1e9:.0f} GB at 10^6 classes" in PAGE.read_text()


def test_growth_is_the_slope_of_the_logarithms():
    assert slope([10, 100, 1000], [2, 200, 20_000]) == pytest.approx(2)
    assert slope([10, 10], [1, 2]) is None
