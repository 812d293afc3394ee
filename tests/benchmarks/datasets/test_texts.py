"""Image files one behind the other in an npz, the texts that belong to them, and WordNet."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.datasets import captions, load, wordnet_nouns
from benchmarks.datasets.emoji import base_of, connected
from benchmarks.datasets.packed import count_packed, read_packed, read_rows
from benchmarks.datasets.wordnet import PLACES
from laplace_metric.errors import FileFormatError, InputError

COLOURS = [(200, 100, 20), (20, 100, 200), (10, 250, 40), (250, 30, 240), (90, 90, 90), (9, 9, 9)]


BIRDS = {
    "labels": np.array([0, 0, 1, 1, 2, 2], np.int16),
    "train": np.array([True, False, True, True, False, True]),
    "class_names": np.array(["Albatross", "Ani", "Auklet"]),
}


Save = Callable[..., None]


@pytest.fixture
def birds(tmp_path: Path, save_packed: Save) -> Path:
    save_packed(tmp_path / "CUB/cub100_jpeg.npz", COLOURS, "JPEG", **BIRDS)
    return tmp_path


@pytest.mark.parametrize(("split", "rows"), [("train", [0, 2, 3, 5]), ("test", [1, 4])])
def test_the_flag_splits(birds: Path, split: str, rows: list[int]) -> None:
    part = load("cub", split, birds, size=6)
    assert part.labels.tolist() == BIRDS["labels"][rows].tolist()
    assert part.class_names == ("Albatross", "Ani", "Auklet")
    assert part.images.shape == (len(rows), 3, 6, 6)
    colours = [COLOURS[row] for row in rows]
    np.testing.assert_allclose(part.images[:, :, 3, 3].numpy(), colours, atol=3)
    two = load("cub", split, birds, 2, size=6)
    assert torch.equal(two.images, part.images[:: len(rows) // 2])


@pytest.mark.parametrize(
    "offsets",
    [[0], [], [1, 9], [0, 9, 9], [0, 9, 5], [0.0, 9.0], [[0, 9]], [0, -1], ["0", "9"]],
)
def test_offsets_that_do_not_rise(tmp_path: Path, offsets: list[object]) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, data=np.zeros(9, np.uint8), offsets=np.array(offsets))
    for read in (read_packed, count_packed):
        with pytest.raises(FileFormatError, match="numbers rising from 0"):
            read(path)


@pytest.mark.parametrize("last", [8, 10, 2**62])
def test_offsets_end_where_the_data_end(tmp_path: Path, last: int) -> None:
    np.savez(tmp_path / "x.npz", data=np.zeros(9, np.uint8), offsets=np.array([0, last]))
    with pytest.raises(FileFormatError, match=f"offsets.*to {last}.*9 bytes"):
        read_packed(tmp_path / "x.npz")


def test_only_kept_images_are_decoded_and_damage_names_its_row(birds: Path) -> None:
    path = birds / "CUB/cub100_jpeg.npz"
    with np.load(path) as archive:
        content = dict(archive)
    start, end = content["offsets"][2:4]
    content["data"][start + 20 : end] = 7
    np.savez(path, **content)
    assert load("cub", "train", birds, limit=1).labels.tolist() == [0]
    with pytest.raises(FileFormatError, match=r"npz.*damaged image.*row 2"):
        load("cub", "train", birds)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[", "not a JSON file"),
        (b"[" * 100_000, "not a JSON file"),
        (b"\xff\xfe\xfd", "not a JSON file"),
        (b"{}", "describes a dict, not a list where there are 2"),
        (b'[{"a": "x", "b": []}]', "describes 1 where there are 2"),
        (b'[{"a": "x", "b": []}, 3]', "no 'a' in row 1, a text"),
        (b'[{"a": "x", "b": []}, {"a": 3, "b": []}]', "no 'a' in row 1, a text"),
        (b'[{"a": "x", "b": ["y", 3]}, {"a": "x"}]', "no 'b' in row 0, a list of texts"),
        (b'[{"a": "x", "b": "yz"}, {"a": "x"}]', "no 'b' in row 0, a list of texts"),
    ],
)
def test_rows_of_texts(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match=message):
        read_rows(path, 2, a=str, b=list)
    path.write_bytes(b'[{"a": "x", "b": ["y"]}, {"a": "", "b": [], "more": 1}]')
    assert [row["b"] for row in read_rows(path, 2, a=str, b=list)] == [["y"], []]


CAPTIONS_COLOURS = [(200, 100, 20), (20, 100, 200), (10, 250, 40)]


LEVELS = [[f"thing {i}", f"b {i}", f"c {i}", f"d {i}"] for i in range(3)]


@pytest.fixture
def folder(tmp_path: Path, save_packed: Callable[..., None]) -> Path:
    save_packed(tmp_path / "HierarCaps/images_jpeg.npz", CAPTIONS_COLOURS)
    write(tmp_path, [{"levels": levels, "image": "../../secret.jpg"} for levels in LEVELS])
    return tmp_path


def write(folder: Path, rows: object) -> None:
    (folder / "HierarCaps/captions.json").write_text(json.dumps(rows))


def test_every_image_has_its_own_label_and_four_texts(folder: Path) -> None:
    images = load("hierarcaps", "test", folder, size=4)
    assert images.labels.tolist() == [0, 1, 2]
    assert images.images[:, :, 2, 2].tolist() == [list(colour) for colour in CAPTIONS_COLOURS]
    texts = captions("hierarcaps", "test", folder)
    assert texts == [tuple(levels) for levels in LEVELS]
    assert load("hierarcaps", "test", folder, 2).labels.tolist() == [0, 1]
    assert captions("hierarcaps", "test", folder, 2) == texts[:2]
    assert load("hierarcaps", "test", folder, 1).images.shape == (1, 3, 224, 224)


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


EMOJI_COLOURS = [(i, 40 * i, 200) for i in range(5)] + [(3, 120, 200)]  # the cars are drawn alike


@pytest.fixture
def emoji_folder(tmp_path: Path, save_packed: Callable[..., None]) -> Path:
    save_packed(tmp_path / "Emoji/emoji_png96.npz", EMOJI_COLOURS)
    emoji_write(tmp_path, FACTS)
    return tmp_path


def emoji_write(emoji_folder: Path, rows: object) -> None:
    (emoji_folder / "Emoji/emoji.json").write_text(json.dumps(rows))


def test_both_parts_together_are_the_files_row_by_row(emoji_folder: Path) -> None:
    groups = ("Things", "People")
    rows, bases = [], {}
    for split in ("train", "test"):
        part, texts = (
            load("emoji", split, emoji_folder, size=4),
            captions("emoji", split, emoji_folder),
        )
        assert len(part) == len(texts)
        assert part.class_names == ("Things > face", "People > person-role", "Things > transport")
        for i, row in enumerate(part.extras["row"].tolist()):
            one = FACTS[row]
            assert part.class_names[part.labels[i]] == f"{one['group']} > {one['subgroup']}"
            assert groups[part.extras["group"][i]] == one["group"]
            assert part.images[i, :, 2, 2].tolist() == list(EMOJI_COLOURS[row])
            assert texts[i][-1] == one["name"]
            assert [*texts[i][:-1]] == [k for k in one["keywords"] if k != one["name"]]
        rows.append(set(part.extras["row"].tolist()))
        bases |= dict(zip(part.extras["row"].tolist(), part.extras["base"].tolist(), strict=True))
    assert bases == {0: 0, 1: 1, 2: 1, 3: 2, 4: 0, 5: 2}
    assert rows == [{0, 3, 4, 5}, {1, 2}]


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


LICENCE = "  1 This software and database is being provided to you\n  2 as is.\n"


DATA = (
    "00000001 03 n 01 entity 0 002 ~ 00000002 n 0000 ~ 00000003 n 0000 | that which is  \n"
    "00000002 03 n 02 animal 0 living_beast 1 002 @ 00000001 n 0000 ~ 00000004 n 0000 | it lives\n"
    '00000003 03 n 01 pet 0 001 @ 00000001 n 0000 | kept at home; "a pet of mine"\n'
    "00000004 05 n 01 dog 0 003 @ 00000002 n 0000 @ 00000003 n 0000 + 00000009 v 0101 | it barks\n"
    "00000005 05 n 01 Lassie 0 001 @i 00000004 n 0000 | a famous dog\n"
    "00000006 05 n 01 pet 1 001 @ 00000001 n 0000 | a fit of sulks\n"
)


INDEX = (
    "animal n 1 2 @ ~ 1 1 00000002\n"
    "dog n 1 1 @ 1 1 00000004\n"
    "entity n 1 1 ~ 1 0 00000001\n"
    "lassie n 1 1 @ 1 0 00000005\n"
    "pet n 2 1 @ 2 1 00000003 00000006\n"
)


@pytest.fixture
def wordnet_folder(tmp_path: Path) -> Path:
    (tmp_path / "data.noun").write_text(LICENCE + DATA)
    (tmp_path / "index.noun").write_text(LICENCE + INDEX)
    return tmp_path


def test_terms_glosses_and_what_includes_what(wordnet_folder: Path) -> None:
    nouns = wordnet_nouns(wordnet_folder)
    assert nouns.terms[1] == ("animal", "living beast")
    assert nouns.glosses == (
        "that which is", "it lives", "kept at home", "it barks", "a famous dog", "a fit of sulks",
    )  # fmt: skip
    assert nouns.hypernyms == ((), (0,), (0,), (1, 2), (3,), (0,))
    assert nouns.first_sense == (True, True, True, True, True, False)
    assert [sorted(own) for own in nouns.ancestors] == [
        [], [0], [0], [0, 1, 2], [0, 1, 2, 3], [0],
    ]  # fmt: skip
    assert nouns.n_descendants.tolist() == [5, 2, 2, 1, 0, 0]  # through both parents once
    assert len(nouns) == 6


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("data.noun", DATA.replace(" 01 dog 0", " 09 dog 0"), "damaged line: '00000004"),
        ("data.noun", DATA.replace(" | a famous dog", " | "), "without gloss: '00000005"),
        ("data.noun", DATA.replace("@i 00000004", "@i 00000007"), "points at synset '00000007'"),
        ("index.noun", INDEX.replace("pet n 2", "pet n x"), "damaged line: 'pet n x"),
        ("data.noun", b"\xff\xfe\x00", "is no text"),
    ],
)
def test_damaged_files(wordnet_folder: Path, file: str, content: str | bytes, message: str) -> None:
    data = content.encode() if isinstance(content, str) else content
    (wordnet_folder / file).write_bytes(data)
    with pytest.raises(FileFormatError, match=message):
        wordnet_nouns(wordnet_folder)


def test_the_real_one() -> None:
    try:
        nouns = wordnet_nouns()
    except InputError:
        pytest.skip(f"no WordNet: neither WNSEARCHDIR nor {PLACES}")
    by_term = {own[0]: row for row, own in enumerate(nouns.terms) if nouns.first_sense[row]}
    counts = nouns.n_descendants
    assert counts[by_term["entity"]] == len(nouns) - 1
    assert counts[by_term["animal"]] > counts[by_term["dog"]] > counts[by_term["poodle"]]
    assert by_term["animal"] in nouns.ancestors[by_term["poodle"]]
