"""One image or text as a query, tables of images, embeddings as CSV."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from laplace_metric.cli import main
from laplace_metric.cli._gallery import Origin
from laplace_metric.cli._open_source import open_source
from laplace_metric.cli._source import ReadOptions
from laplace_metric.errors import InputError, LabelError
from laplace_metric.io import SavedFile
from tests.cli.workshop import LETTERS, MODEL
from tests.saved_files import put


def write_csv(path: Path, rows: list[tuple[str, ...]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)


@pytest.mark.parametrize(
    ("name", "between", "message"),
    [
        ("t.csv", ";", r"t.csv has ';' between.* read with ',' .*Write it with ',', and with '.'"),
        ("t.csv", "\t", r"t.csv has '\\t' between.*Name it t.tsv, or write it with ','"),
        ("t.tsv", ",", r"t.tsv has ',' between.*read with '\\t'.*Name it t.csv"),
    ],
)
def test_columns_that_another_character_separates_are_told(tmp_path, name, between, message):
    rows = [("text", "label"), ("a cat, a dog", "x"), ("a dog", "y")]
    (tmp_path / name).write_text("\n".join(map(between.join, rows)))
    with pytest.raises(InputError, match=message):
        open_source(tmp_path / name)


def test_one_column_may_have_any_name(tmp_path):
    for name in ("a; b", "text;", "text"):
        write_csv(tmp_path / "t.csv", [(name,), ("a;b",)])
        assert open_source(tmp_path / "t.csv", ReadOptions(text_column=name)).read([0]) == ["a;b"]


@pytest.fixture
def listed(workplace):
    """``lists/all.csv`` names the photographs in another order than the folder."""
    photos = open_source(workplace / "photos")
    order = np.random.default_rng(0).permutation(600)
    rows = [(f"../photos/{photos.ids[i]}", photos.classes[i]) for i in order]
    (workplace / "lists").mkdir()
    write_csv(workplace / "lists" / "all.csv", [("path", "label"), *rows])
    return workplace


def test_a_table_of_images_is_the_folder(listed):
    photos, table = open_source(listed / "photos"), open_source(listed / "lists" / "all.csv")
    row = {f"../photos/{name}": number for number, name in enumerate(photos.ids)}
    rows = [row[name] for name in table.ids]
    assert rows != sorted(rows)
    assert table.kind == "images"
    assert table.classes == tuple(photos.classes[number] for number in rows)
    assert torch.equal(table.read(range(5)), photos.read(rows[:5]))


def test_from_a_table_to_an_answer_about_one_image(listed, capsys):
    fit = ["fit", "lists/all.csv", *MODEL, "--holdout", "0.4", "--quiet"]
    assert main(fit) == 0
    build = ["index", "lists/all.csv", "--posterior", "posterior", "--trust-recipe", "--quiet"]
    assert main(build) == 0
    asked = next((listed / "photos" / "class 3").iterdir())
    shutil.copy(asked, "one.png")
    search = ["search", "index", "one.png", "--trust-recipe", "-k", "3"]
    Path("given").mkdir()  # a foreign index may name a table of any paths
    shutil.copy("lists/all.csv", "given")
    origin = Origin.read(SavedFile(Path("index")))
    there = str(Path("given/all.csv").resolve())
    put(Path("index"), replace(origin, data=there).part())
    assert main([*search, "--picture", "p.png", "--quiet"]) == 2
    assert "index says that the items lie in" in capsys.readouterr().err  # not read unasked
    pages = [Path(name) for name in ("without.html", "with.html")]
    for page, more in zip(pages, ([], ["--data", "lists/all.csv"]), strict=True):
        report = ["report", "index", "lists/all.csv", "--output", str(page), *more]
        assert main([*report, "--trust-recipe", "--quiet"]) == 0
    shown = [page.read_text().count("data:image") for page in pages]
    assert shown[0] < shown[1]
    search += ["--data", "lists/all.csv"]
    assert main([*search, "--json", "r.json", "--picture", "p.png", "--quiet"]) == 0
    results = json.loads(Path("r.json").read_text())["results"]
    assert [(row["query"], row["rank"]) for row in results] == [("one.png", k) for k in (1, 2, 3)]
    assert results[0]["label"] == "class 3"
    assert Path("p.png").stat().st_size > 1000
    assert main(["search", "index", "--text", "a", "--trust-recipe"]) == 2
    assert "--text holds texts, the posterior was fitted to images" in capsys.readouterr().err


def test_tables_that_are_wrong(listed):
    lists = listed / "lists"

    def opened(rows, **options):
        write_csv(lists / "t.csv", rows)
        return open_source(lists / "t.csv", ReadOptions(**options))

    good = open_source(lists / "all.csv").ids[0]
    with pytest.raises(InputError, match=r"row 2: .*no\.png.*no file.*folder"):
        opened([("path",), (good,), ("no.png",)])
    with pytest.raises(InputError, match="names .* twice"):
        opened([("path",), (good,), (good,)])
    with pytest.raises(LabelError, match="row 1.*empty label"):
        opened([("image", "label"), (good, "")])
    with pytest.raises(InputError, match="image_column='picture': .*no such column"):
        opened([("image",), (good,)], image_column="picture")
    with pytest.raises(InputError, match="paths.*with --image-column"):
        opened([("picture",), (good,)])
    assert opened([("picture", "text"), (good, "a")], image_column="picture").kind == "images"
    assert opened([("path", "text"), (good, "a")]).kind == "texts"
    assert opened([("text", "path"), (good, "a")]).read([0]) == [good]


def test_a_text_of_the_command_line_is_the_same_as_in_a_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("spelling.py").write_text(LETTERS)
    write_csv(
        Path("t.csv"), [("text", "label"), *((f"{a}{b}{a}", a) for a in "abc" for b in "xyz")]
    )
    write_csv(Path("q.csv"), [("text",), ("abba",), ("zc, z",)])
    assert main(["fit", "t.csv", "--model", "spelling:model", "--quiet"]) == 0
    assert main(["index", "t.csv", "--posterior", "posterior", "--trust-recipe", "--quiet"]) == 0
    search = ["search", "index", "--trust-recipe", "-k", "2", "--json", "-"]
    assert main([*search, "q.csv"]) == 0
    in_file = json.loads(capsys.readouterr().out)["results"]
    assert main([*search, "--text", "abba", "--text", "zc, z"]) == 0
    told = json.loads(capsys.readouterr().out)["results"]
    assert [row.pop("query") for row in told] == ["abba"] * 2 + ["zc, z"] * 2
    assert told == [{k: v for k, v in row.items() if k != "query"} for row in in_file]
    for queries, says in (
        (["q.csv", "--text", "abba"], "or --text: one of the two"),
        ([], "QUERIES"),
    ):
        assert main([*search, *queries]) == 2
        assert says in capsys.readouterr().err


def test_embeddings_as_csv(workplace):
    assert main(["fit", "photos", *MODEL, "--quiet"]) == 0
    for name in ("o.csv", "o.npz"):
        arguments = ["embed", "photos", "--posterior", "posterior", "--trust-recipe"]
        assert main([*arguments, "--output", name, "--quiet"]) == 0
    with Path("o.csv").open() as file:
        rows = list(csv.DictReader(file))
    with np.load("o.npz") as arrays:
        assert [row["id"] for row in rows] == arrays["ids"].tolist()
        assert [row["label"] for row in rows] == arrays["labels"].tolist()
        numbers = np.array([[row[f"embedding_{k}"] for k in range(16)] for row in rows], np.float32)
        assert np.array_equal(numbers, arrays["embeddings"])
        uncertainty = np.array([row["uncertainty"] for row in rows], np.float32)
        assert np.array_equal(uncertainty, arrays["uncertainty"])
