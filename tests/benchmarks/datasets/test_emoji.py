from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.datasets import captions, load
from benchmarks.datasets.emoji import base_of, connected, is_test
from laplace_metric.errors import FileFormatError, InputError


def fact(codepoints: str, name: str, subgroup: str, *keywords: str) -> dict[str, object]:
    return {
        "codepoints": codepoints,
        "name": name,
        "keywords": list(keywords),
        "group": "People" if subgroup.startswith("person") else "Things",
        "subgroup": subgroup,
    }


FACTS = [
    fact("1F600", "grinning face", "face", "face", "grin", "grinning face"),
    fact("1F9D1 200D 1F4BB", "technologist", "person-role", "coder"),
    fact("1F469 1F3FE 200D 1F4BB", "woman technologist", "person-role", "coder", "woman"),
    fact("1F697", "automobile", "transport", "car"),
    fact("1F600 FE0F", "the same face", "face"),
    fact("1F698", "oncoming automobile", "transport", "car"),
]
COLOURS = [(i, 40 * i, 200) for i in range(5)] + [(3, 120, 200)]  # the cars are drawn alike


@pytest.fixture
def folder(tmp_path: Path, save_packed: Callable[..., None]) -> Path:
    save_packed(tmp_path / "Emoji/emoji_png96.npz", COLOURS)
    write(tmp_path, FACTS)
    return tmp_path


def write(folder: Path, rows: object) -> None:
    (folder / "Emoji/emoji.json").write_text(json.dumps(rows))


def test_both_parts_together_are_the_files_row_by_row(folder: Path) -> None:
    groups = ("Things", "People")
    rows, bases = [], {}
    for split in ("train", "test"):
        part, texts = load("emoji", split, folder, size=4), captions("emoji", split, folder)
        assert len(part) == len(texts)
        assert part.class_names == ("Things > face", "People > person-role", "Things > transport")
        for i, row in enumerate(part.extras["row"].tolist()):
            one = FACTS[row]
            assert part.class_names[part.labels[i]] == f"{one['group']} > {one['subgroup']}"
            assert groups[part.extras["group"][i]] == one["group"]
            assert part.images[i, :, 2, 2].tolist() == list(COLOURS[row])
            assert texts[i][-1] == one["name"]
            assert [*texts[i][:-1]] == [k for k in one["keywords"] if k != one["name"]]
        rows.append(set(part.extras["row"].tolist()))
        bases |= dict(zip(part.extras["row"].tolist(), part.extras["base"].tolist(), strict=True))
    assert bases == {0: 0, 1: 1, 2: 1, 3: 2, 4: 0, 5: 2}
    assert rows == [{0, 3, 4, 5}, {1, 2}]


def test_default_size_and_limit(folder: Path) -> None:
    whole = load("emoji", "train", folder)
    assert whole.images.shape[1:] == (3, 96, 96)
    assert load("emoji", "train", folder, 2).extras["row"].tolist() == [0, 4]
    assert captions("emoji", "train", folder, 2) == captions("emoji", "train", folder)[::2]


@pytest.mark.parametrize(
    "alike",
    [
        ("1F44B", "1F44B 1F3FB", "1F44B 1F3FF"),
        ("1F6B4", "1F6B4 200D 2640 FE0F", "1F6B4 1F3FD 200D 2642 FE0F"),
        ("1F9D1 200D 1F4BC", "1F468 200D 1F4BC", "1F469 1F3FE 200D 1F4BC"),
        ("1F46B 1F3FB", "1F469 1F3FB 200D 1F91D 200D 1F468 1F3FF", "1F9D1 200D 1F91D 200D 1F9D1"),
        ("1F491", "1F468 200D 2764 FE0F 200D 1F468", "1F9D1 1F3FB 200D 2764 FE0F 200D 1F9D1 1F3FC"),
        ("1F91D", "1F91D 1F3FB", "1FAF1 1F3FB 200D 1FAF2 1F3FC"),
        ("1F385", "1F936 1F3FB", "1F9D1 200D 1F384"),
        ("1F934", "1F478 1F3FF", "1FAC5"),
    ],
)
def test_tone_and_gender_are_no_part_of_the_base(alike: tuple[str, ...]) -> None:
    assert len({base_of(codepoints) for codepoints in alike}) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("2640 FE0F", "2642 FE0F"),
        ("1F1E9 1F1EA", "1F1EA 1F1E9"),
        ("1F468 200D 1F4BC", "1F468 200D 1F373"),
        ("1F9D1", "1F9D2"),
        ("1FAF1", "1FAF2"),
        ("0023 FE0F 20E3", "002A FE0F 20E3"),
    ],
)
def test_other_bases(one: str, other: str) -> None:
    assert base_of(one) != base_of(other)


BASES = st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 9)), min_size=1, max_size=20)


@given(pairs=BASES, seed=st.integers(0, 99))
def test_what_is_connected_stays_together_in_any_order(
    pairs: list[tuple[str, int]], seed: int
) -> None:
    """Against sets that are merged until nothing changes."""
    bases, drawings = [p[0] for p in pairs], [str(p[1]) for p in pairs]
    found = connected(bases, drawings)
    parts = [{f"b{base}", f"d{drawing}"} for base, drawing in zip(bases, drawings, strict=True)]
    for _ in parts:
        parts = [set.union(*(other for other in parts if other & part)) for part in parts]
    assert found == [min(name for name in part if name[0] == "b")[1:] for part in parts]
    order = np.random.default_rng(seed).permutation(len(pairs))
    again = connected([bases[i] for i in order], [drawings[i] for i in order])
    assert again == [found[i] for i in order]


def test_three_in_ten_are_asked() -> None:
    assert 0.28 < np.mean([is_test(f"{i:X}") for i in range(4_000)]) < 0.32


def test_missing_texts(folder: Path) -> None:
    (folder / "Emoji/emoji.json").unlink()
    with pytest.raises(InputError, match=r"needs the file .*emoji\.json, which is not there"):
        load("emoji", data=folder)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (FACTS[:5], "describes 5 where there are 6 images"),
        ([*FACTS[:5], {**FACTS[5], "codepoints": " "}], "no code points in row 5"),
        *(
            ([*FACTS[:5], {k: v for k, v in FACTS[5].items() if k != field}], f"no '{field}' in")
            for field in FACTS[5]
        ),
    ],
)
def test_damaged_texts(folder: Path, rows: object, message: str) -> None:
    write(folder, rows)
    for read in (load, captions):
        with pytest.raises(FileFormatError, match=rf"emoji\.json .*{message}"):
            read("emoji", data=folder)


def test_real_emoji(real_data: Path) -> None:
    parts = {split: load("emoji", split, real_data) for split in ("train", "test")}
    assert sum(map(len, parts.values())) == 3_655
    assert 0.25 < len(parts["test"]) / 3_655 < 0.35
    drawings = [{image.numpy().tobytes() for image in part.images} for part in parts.values()]
    assert not drawings[0] & drawings[1]
    facts = json.loads((real_data / "Emoji/emoji.json").read_text())
    bases = []
    for split, part in parts.items():
        assert len(part.class_names) == 99
        chosen = [facts[row] for row in part.extras["row"].tolist()]
        bases.append({base_of(one["codepoints"]) for one in chosen})
        texts = captions("emoji", split, real_data)
        assert [t[-1] for t in texts] == [one["name"] for one in chosen]
        assert all(set(one["keywords"]) <= set(t) for one, t in zip(chosen, texts, strict=True))
    assert not bases[0] & bases[1]
