"""``index --group-column``: no frame finds another one of its video, and videos are counted."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from laplace_metric import LaplaceEmbedder
from laplace_metric.cli._open_source import open_source
from laplace_metric.search import Index
from tests.cli.workshop import MODEL, own_model, refused
from tests.cli.workshop import trusting as main

BUILD = ["index", "frames.csv", "--posterior", "posterior", "--group-column", "video"]


def write_table(name: str, rows: list[tuple[str, ...]]) -> None:
    with Path(name).open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label", "video"), *rows])


@pytest.fixture
def frames(workplace, capsys):
    """``frames.csv``: 300 photographs, four of one class a video; ``others.csv``: 300 more."""
    photos = open_source(workplace / "photos")
    seen: dict[str, int] = {}
    rows = []
    for name, label in zip(photos.ids, photos.classes, strict=True):
        seen[label] = seen.get(label, -1) + 1
        rows.append((f"photos/{name}", label, f"{label} {seen[label] // 4}"))
    half = [row for row in rows if int(row[2].split()[-1]) % 2 == 0]
    write_table("frames.csv", half)
    write_table("others.csv", [row for row in rows if row not in half])
    assert main(["fit", "frames.csv", *MODEL, "--quiet"]) == 0
    capsys.readouterr()
    return half


def test_items_that_calibrate_themselves_count_videos(frames, capsys):
    assert main([*BUILD, "--cross-fit", "4", "--quiet", "--json", "-"]) == 0
    told = json.loads(capsys.readouterr().out)
    embedder = LaplaceEmbedder.load("index", own_model())
    groups = Index.load("index", embedder).calibration.group
    names = [video for _, _, video in frames]
    assert told["calibrated_with"] == len(groups) == len(frames)
    assert len(np.unique(groups)) == len(set(names))
    _, sizes = np.unique(groups, return_counts=True)
    assert sorted(sizes) == sorted(names.count(name) for name in set(names))


def test_other_data_calibrate_by_their_own_groups(frames, capsys):
    assert main([*BUILD, "--calibrate", "others.csv", "--quiet"]) == 0
    groups = Index.load("index", LaplaceEmbedder.load("index", own_model())).calibration.group
    with Path("others.csv").open() as file:
        videos = {line["video"] for line in csv.DictReader(file)}
    assert len(np.unique(groups)) == len(videos)


def test_what_has_no_groups_is_told(frames, capsys):
    build = ["index", "photos", "--posterior", "posterior", "--group-column", "video"]
    assert "photos is no table. List the items in a .csv" in refused(
        [*build, "--cross-fit", "4"], capsys
    )
    assert "has no column 'film'" in refused([*BUILD[:-1], "film", "--cross-fit", "4"], capsys)
    held = refused([*BUILD, "--holdout", "0.4", "--allow-fitted"], capsys)
    assert "a random part that is held out shares its groups" in held
    rows = [*frames]
    rows[7] = (*rows[7][:2], " ")
    write_table("frames.csv", rows)
    assert "video of row 8 is empty" in refused([*BUILD, "--cross-fit", "4"], capsys)


def test_a_video_is_one_query(frames, capsys):
    with Path("others.csv").open() as file:
        others = [(line["path"], line["label"], line["video"]) for line in csv.DictReader(file)]
    videos = sorted({video for _, _, video in others})
    held, asked = ([row for row in others if row[2] in videos[i::2]] for i in (0, 1))
    write_table("held.csv", held)
    write_table("asked.csv", asked)
    build = [*BUILD, "--calibrate", "held.csv", "--one-answer", "--quiet"]
    assert main(build) == 0
    index = Index.load("index", LaplaceEmbedder.load("index", own_model()))
    assert index.calibration.of_views
    assert len(index.calibration.known) == len(videos[::2])
    capsys.readouterr()
    by_video = ["--group-column", "video", "--quiet"]
    assert main(["search", "index", "asked.csv", "-k", "2", "--output", "a.csv", *by_video]) == 0
    with Path("a.csv").open() as file:
        found = [line["query"] for line in csv.DictReader(file)]
    assert sorted(set(found)) == videos[1::2]
    assert len(found) == 2 * len(videos[1::2])
    capsys.readouterr()
    assert main(["evaluate", "index", "asked.csv", "--json", "-", *by_video]) == 0
    assert json.loads(capsys.readouterr().out)["queries"] == len(videos[1::2])


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (
            ["index", "frames.csv", "--posterior", "posterior", "--one-answer"],
            "--group-column NAME",
        ),
        ([*BUILD, "--one-answer", "--cross-fit", "4"], "give --calibrate TABLE"),
    ],
)
def test_one_answer_needs_a_table_of_groups(frames, capsys, command, told):
    assert told in refused(command, capsys)


def test_views_of_a_search_stand_in_a_table(frames, capsys):
    assert main([*BUILD, "--cross-fit", "4", "--quiet"]) == 0
    capsys.readouterr()
    views = ["--group-column", "video"]
    assert "photos is no table" in refused(["search", "index", "photos", *views], capsys)
    picture = ["search", "index", "others.csv", *views, "--picture", "a.png"]
    assert "shows single queries" in refused(picture, capsys)
