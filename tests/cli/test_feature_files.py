"""The folder of features is bounded, says when it is full, and gives back every bit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import nn

from laplace_metric.cli._feature_cache import FeatureFiles, KeptFeatures
from laplace_metric.cli._models import network_answer, network_identity, transform_identity
from laplace_metric.cli._sources import Source, given_texts
from laplace_metric.heads._locate import HeadActivations, find_head

KEYS = [f"{number:02x}" * 32 for number in range(9)]


def seen(value: float, n: int = 100) -> HeadActivations:
    h = torch.full((n, 8), float(value))
    return HeadActivations(h, h[:, :3] + 1, torch.nn.functional.normalize(h[:, :3] + 1))


def same(a: HeadActivations, b: HeadActivations) -> bool:
    names = ("features", "raw", "output")
    pairs = [(getattr(a, name), getattr(b, name)) for name in names]
    return all(torch.equal(x, y) and x.dtype == y.dtype for x, y in pairs)


def keys_in(files: FeatureFiles) -> list[int]:
    return [n for n, key in enumerate(KEYS) if files._path(key).exists()]


def opened(tmp_path, most: int = 2**20) -> tuple[FeatureFiles, list[str]]:
    told = list[str]()
    return FeatureFiles(tmp_path / "cache", told.append, most), told


@pytest.mark.parametrize(
    "given",
    [
        seen(0.5),
        HeadActivations(*[torch.randn(5, 4, dtype=torch.bfloat16)] * 3),
        HeadActivations(*(torch.randn(4, 5, dtype=torch.float64).T for _ in range(3))),
        HeadActivations(torch.zeros(2, 2), -torch.zeros(2, 2), -torch.zeros(2, 2)),
    ],
)
def test_what_is_read_is_what_was_put(given, tmp_path):
    files, told = opened(tmp_path)
    files.put(KEYS[0], given)
    found = files.get(KEYS[0])
    assert same(found, given)
    assert torch.equal(torch.signbit(found.raw), torch.signbit(given.raw))
    assert files.get(KEYS[1]) is None
    assert not told


def test_an_appended_head_takes_the_room_of_what_enters_it(tmp_path):
    files, _ = opened(tmp_path)
    h = torch.randn(100, 8)
    files.put(KEYS[0], HeadActivations(h, h.clone(), h))
    assert h.nbytes <= files._path(KEYS[0]).stat().st_size < 1.2 * h.nbytes
    assert same(files.get(KEYS[0]), HeadActivations(h, h, h))


def test_those_not_used_for_longest_make_room(tmp_path):
    first, _ = opened(tmp_path)
    for number in range(4):
        first.put(KEYS[number], seen(number))
    size = first._path(KEYS[0]).stat().st_size
    for age, number in enumerate((2, 0, 3, 1)):
        os.utime(first._path(KEYS[number]), (1e9 + age, 1e9 + age))
    assert opened(tmp_path)[0].get(KEYS[2]) is not None  # an earlier command used it last
    files, told = opened(tmp_path, most=4 * size + 10)
    files.put(KEYS[4], seen(4))
    assert keys_in(files) == [1, 2, 3, 4]
    files.put(KEYS[5], seen(5))
    assert keys_in(files) == [1, 2, 4, 5]
    assert not told


def test_a_command_that_fills_the_folder_keeps_its_first_items(tmp_path):
    files, told = opened(tmp_path)
    files.put(KEYS[0], seen(0))
    size = files._path(KEYS[0]).stat().st_size
    files, told = opened(tmp_path, most=3 * size + 10)
    for number in range(1, 9):
        files.put(KEYS[number], seen(number))
    assert keys_in(files) == [1, 2, 3]
    (line,) = told
    assert "is full" in line
    total = sum(path.stat().st_size for path in files.folder.rglob("*.safetensors"))
    assert total <= files.most


class Scaled(nn.Module):
    def __init__(self, factor: float, buffer: float = 1.0) -> None:
        super().__init__()
        self.linear, self.factor = nn.Linear(4, 3), factor
        self.register_buffer("shift", torch.tensor(buffer), persistent=False)
        nn.init.constant_(self.linear.weight, 0.5)
        nn.init.constant_(self.linear.bias, 0.5)

    def forward(self, x):
        return self.linear(self.factor * x) + 0 * self.shift


def test_what_tells_one_network_from_another():
    x = torch.ones(2, 4)

    def told(model, threads=None):
        before = torch.get_num_threads()
        torch.set_num_threads(threads or before)
        head = find_head(model, x, "append")
        identity = network_identity(model, head), network_answer(model, head, x)
        torch.set_num_threads(before)
        return identity

    plain = told(Scaled(1.0))
    assert told(Scaled(1.0)) == plain
    assert told(Scaled(1.5))[0] == plain[0]
    assert told(Scaled(1.5))[1] != plain[1]
    assert told(Scaled(1.0, buffer=2.0))[0] != plain[0]
    other = Scaled(1.0)
    nn.init.constant_(other.linear.bias, 0.25)
    assert told(other)[0] != plain[0]
    assert told(Scaled(1.0), threads=torch.get_num_threads() + 1)[0] != plain[0]
    assert told(nn.Sequential(Scaled(1.0)))[0] != plain[0]


class FirstToken(nn.Module):
    def forward(self, x):
        return x.unflatten(1, (2, 4))[:, 1]  # a view, whose rows lie apart


def test_what_was_computed_lies_in_memory_as_what_was_read(tmp_path):
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    model = nn.Sequential(FirstToken(), nn.Linear(4, 3))
    head = find_head(model, x)
    source = Source(Path("x"), "arrays", tuple("abcdef"), None, lambda rows: x[list(rows)], "", {})
    files, told = opened(tmp_path)
    answers = []
    for where in (None, files, files):
        kept = KeptFeatures(model, head, where, "")
        (batch,) = kept.of(source).batches(6)
        answers.append(batch[0].look())
        assert answers[-1].features.stride() == (4, 1)
        assert same(answers[-1], answers[0])
    assert (kept.found, kept.computed) == (6, 0)
    assert kept.summary() == f"features of 6 of 6 items came from {files.folder}"
    assert not told


def test_files_are_known_by_their_bytes_and_how_they_are_read(tmp_path):
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    model, (files, _) = nn.Linear(8, 3), opened(tmp_path)
    head, hashes = find_head(model, x), lambda rows: [f"hash {row}" for row in rows]
    counts = []
    for reads, size in (("a", 8), ("a", 8), ("b", 8), ("a", 9), (None, 8), (None, 8)):
        rows = Source(
            Path("x"),
            "images",
            tuple("abcd"),
            None,
            lambda r: x[list(r)],
            "",
            {"size": size},
            hashes,
        )
        kept = KeptFeatures(model, head, files, reads)
        (batch,) = kept.of(rows).batches(4)
        batch[0].look()
        counts.append(kept.found)
    assert counts == [0, 4, 0, 0, 0, 4]


def test_texts_are_known_by_what_they_say(tmp_path):
    texts = ["a cat", "a dog", "two cats"]

    class Letters(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(26, 4)

        def forward(self, given):
            rows = [[text.count(chr(97 + i)) for i in range(26)] for text in given]
            return self.head(torch.tensor(rows, dtype=torch.float32))

    model, (files, _) = Letters(), opened(tmp_path)
    kept = KeptFeatures(model, find_head(model, texts), files, "")
    for again in range(2):
        (batch,) = kept.of(given_texts(texts)).batches(3)
        batch[0].look()
        assert (kept.found, kept.computed) == (3 * again, 3)
    (batch,) = kept.of(given_texts([*texts[:2], "two bats"])).batches(3)
    batch[0].look()
    assert (kept.found, kept.computed) == (3, 6)


def test_inputs_of_other_kinds_have_no_fixed_question():
    model = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(8, 3))
    x = torch.ones(2, 2, dtype=torch.int64)
    assert network_answer(model, find_head(model, x), x) is None


def test_a_transform_is_known_by_what_it_makes():
    class Transform:
        def __init__(self, scale):
            self.scale = scale

        def __repr__(self):
            return "Transform()"

        def __call__(self, image):
            return torch.tensor([self.scale * pixel for pixel in image.getpixel((5, 7))])

    plain = transform_identity(Transform(1), torch)
    assert transform_identity(Transform(1), torch) == plain
    assert transform_identity(Transform(2), torch) != plain
    assert transform_identity(Transform(1), torch, "settings") != plain
    assert transform_identity(lambda image: 1 / 0, torch) is None
