"""A WordNet of six synsets, written as wndb(5) has it; the real one where it is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.datasets import wordnet_nouns
from benchmarks.datasets.wordnet import PLACES
from laplace_metric.errors import FileFormatError, InputError

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
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data.noun").write_text(LICENCE + DATA)
    (tmp_path / "index.noun").write_text(LICENCE + INDEX)
    return tmp_path


def test_terms_glosses_and_what_includes_what(folder: Path) -> None:
    nouns = wordnet_nouns(folder)
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


def test_the_environment_names_a_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WNSEARCHDIR", str(folder))
    assert len(wordnet_nouns()) == 6


def test_no_wordnet(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no WordNet in .*: pass the folder that holds data.noun"):
        wordnet_nouns(tmp_path)


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
def test_damaged_files(folder: Path, file: str, content: str | bytes, message: str) -> None:
    data = content.encode() if isinstance(content, str) else content
    (folder / file).write_bytes(data)
    with pytest.raises(FileFormatError, match=message):
        wordnet_nouns(folder)


def test_a_circle(folder: Path) -> None:
    (folder / "data.noun").write_text(DATA.replace("entity 0 002 ~", "entity 0 002 @"))
    nouns = wordnet_nouns(folder)
    with pytest.raises(FileFormatError, match="go in a circle"):
        _ = nouns.ancestors


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
