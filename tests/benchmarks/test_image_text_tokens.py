"""The token variant on made-up drawings: every number is there, tables are filled."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from benchmarks.image_text import tokens
from benchmarks.image_text.emoji import EmojiPart
from benchmarks.image_text.token_tables import TABLES
from benchmarks.image_text.tokens import METHODS, SHARES, Drawings, masking, measured, started
from benchmarks.records import write_record
from laplace_metric.errors import CollapseError

pytest.importorskip("tokenizers", reason="needs the package tokenizers")


@pytest.fixture
def drawings(monkeypatch) -> Drawings:
    monkeypatch.setattr(tokens, "BATCH", 16)
    g = torch.Generator().manual_seed(0)
    words = ("red hand", "blue hand", "green car", "old car", "new tree", "sea")
    parts = {}
    for name, n in (("train", 30), ("validation", 10), ("test", 10)):
        images = torch.randint(256, (n, 3, 32, 32), generator=g, dtype=torch.uint8)
        keywords = tuple((words[i % 6], words[(i * i) % 6], words[(i + 1) % 6]) for i in range(n))
        parts[name] = EmojiPart(images, keywords, torch.arange(n) % 2, torch.arange(n))
    counts = Counter(k for part in parts.values() for own in part.keywords for k in own)
    return Drawings(parts, frozenset(words[3:]), counts)


def test_a_run_fills_every_table(drawings, tmp_path):
    rows = [measured(drawings, method, 0, 1) for method in METHODS]
    assert set(rows[1]) >= {"train", "validation", "test", "losses", "spreads", "masking"}
    assert "trained keywords" not in rows[0]
    starts = [started(drawings, -2.0, 1)]
    write_record("image_text_tokens", {"rows": rows, "starts": starts}, tmp_path)
    for table in TABLES.values():
        lines = table(tmp_path).splitlines()
        assert len(lines) >= 3
        assert len({line.count("|") for line in lines}) == 1


def test_masking_compares_shares_within_each_image(drawings):
    embedder = tokens.trained(drawings, METHODS["prolip"], 0, 1)
    images = drawings.parts["test"].features
    row = masking(embedder, images)
    assert row == masking(embedder, images)  # draws of its own
    assert {f"ambiguity at {share}" for share in SHARES} <= set(row)
    trace = embedder.embed_image(images).uncertainty
    assert row["ambiguity at 0.0"] == pytest.approx(float(trace.mean()), rel=1e-5)
    assert all(-1 <= row[f"{name} spearman"] <= 1 for name in ("ambiguity", "epistemic", "1/norm"))


def test_a_collapse_is_noted(drawings, monkeypatch):
    def collapse(*_: object) -> None:
        raise CollapseError("the means of the images have collapsed")

    monkeypatch.setattr(tokens, "trained", collapse)
    assert "collapsed" in started(drawings, -10.0, 2)["error"]
