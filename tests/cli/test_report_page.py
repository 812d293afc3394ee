"""The page of ``report``, read back: what it says and shows is what the index and the data say."""

from __future__ import annotations

import base64
import csv
import io
import json
import os
import re
import shutil
import sys
from html import unescape
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import binomtest

from laplace_metric import LaplaceEmbedder, __version__
from laplace_metric.cli import _label_rows as label_module
from laplace_metric.cli._gallery import LoadedIndex, Origin
from laplace_metric.cli._label_rows import LABELS_SHOWN, label_rows
from laplace_metric.cli._looks import LONGEST, SIDE, look_by, picture_uri
from laplace_metric.cli._open_source import open_source
from laplace_metric.cli._pictures import Pictures
from laplace_metric.cli._report import assessed_by
from laplace_metric.cli._reporter import Reporter
from laplace_metric.io import SavedFile
from laplace_metric.search import Index
from tests.cli.workshop import LETTERS, own_model, refused, write_images, write_vectors
from tests.cli.workshop import trusting as main

LOOK = "item, label to look at"
FIT = ["fit", "photos", "--model", "my_model:embedder", "--holdout", "0.4", "--quiet"]


@pytest.fixture(scope="module")
def place(made_once, digits, tmp_path_factory):
    """A folder with 600 digits, an index, strangers and a report; the current one meanwhile."""
    folder, before = tmp_path_factory.mktemp("report") / "here", Path.cwd()
    shutil.copytree(made_once, folder)
    noise = np.random.default_rng(0).integers(0, 255, (30, 8, 8), dtype=np.uint8)
    write_images(folder / "strange", noise, np.zeros(30, int))
    os.chdir(folder)
    sys.modules.pop("my_model", None)
    try:
        assert main(FIT) == 0
        assert main(["index", "photos", "--posterior", "posterior", "--quiet"]) == 0
        more = ["--open-set", "strange", "--json", "numbers.json", "--quiet"]
        assert main(["report", "index", "photos", *more]) == 0
        yield folder
    finally:
        os.chdir(before)


@pytest.fixture(scope="module")
def page(place) -> str:
    return (place / "report.html").read_text()


@pytest.fixture(scope="module")
def searched(place):
    """The held-out queries, and what a search says of them."""
    photos = open_source(place / "photos")
    queries = photos.take(Origin.read(SavedFile(place / "index")).split(len(photos))[2])
    index = Index.load(place / "index", LaplaceEmbedder.load(place / "index", own_model()))
    found = index.search(queries.read(range(len(queries))), 5)
    right = found.label == np.array(queries.classes)
    return queries, found, right, index


def plain(html: str) -> str:
    body = re.sub(r"<style>.*?</style>|<svg.*?</svg>", " ", html, flags=re.S)
    body = re.sub(r"</(p|li|h\d|td|th|dd|dt|figcaption|title)>", ". ", body)
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", body)).split())


def examples(page: str) -> list[dict]:
    """Of each query: its group, file, badge, and of each neighbour file, frame, label, per cent."""
    found = []
    for group in re.split(r'<div class="group">', page)[1:]:
        key = re.search(r'<h3 class="fate-(\w+)"', group)[1]
        for text in re.findall(r'<article class="example.*?</article>', group, re.S):
            query = re.search(r'<figure class="query" title="(.*?)"', text)[1]
            badge = re.search(r'class="badge (\w+)"', text)
            rows = re.findall(
                r'<li.*?<figure class="(\w*)" title="(.*?)">.*?<figcaption>(.*?)</figcaption>',
                text,
                re.S,
            )
            predicted = re.search(r"predicted ([^<]*)", text)
            found.append({"key": key, "query": unescape(query), "badge": badge and badge[1],
                          "predicted": predicted and predicted[1],
                          "found": [(f, unescape(n), plain(c)) for f, n, c in rows]})  # fmt: skip
    return found


def test_the_verdict_is_that_of_the_numbers(place, page, searched):
    numbers = json.loads((place / "numbers.json").read_text())
    made = [numbers.get("largest_guarantee"), *numbers["guarantees"]]
    first = next(p for p in made if p and p["threshold"] is not None)
    # of those that answer the same queries the highest leads
    same = [p for p in numbers["guarantees"] if p["threshold"] == first["threshold"]]
    first = max(same, key=lambda p: p["guaranteed"], default=first)
    _, found, right, index = searched
    strange = open_source(place / "strange")

    def answered(found):
        sure = found.label_probability.numpy() >= first["threshold"]
        return sure & ~found.unknown.numpy()

    accepted = answered(found)
    let_in = int(answered(index.search(strange.read(range(len(strange))), 5)).sum())
    title = unescape(re.search(r"<h1>(.*?)</h1>", page)[1])
    n, k, good = len(right), int(accepted.sum()), int(right[accepted].sum())
    said = re.fullmatch(
        r"Answers ([\d.]+)\s% of queries; ([\d.]+)\s% of the answers are right, ([\d.]+)\s% with "
        r"the open-set queries\. (\d+)\s% was guaranteed: these queries (.*)\.",
        title,
    )
    assert float(said[1]) == pytest.approx(100 * k / n, abs=0.5)
    assert float(said[2]) == pytest.approx(100 * good / k, abs=0.5)
    assert float(said[3]) == pytest.approx(100 * good / (k + let_in), abs=0.5)
    assert float(said[4]) == pytest.approx(100 * first["guaranteed"])
    sure = binomtest(good, k + let_in, first["guaranteed"], "greater").pvalue <= 0.05
    assert said[5] == ("confirm it" if sure else "are too few to tell")
    assert numbers["verdict"] == title
    assert f"Of {n} queries {k} were answered with a label, {good} of them rightly" in page
    fates = dict(re.findall(r'<li class="fate-(\w+)">[^<]*<b>(\d+)</b>', page))
    assert int(fates["right"]) == good
    assert int(fates.get("wrong", 0)) == k - good
    assert sum(map(int, fates.values())) == n
    assert int(fates["unknown"]) == int(found.unknown.sum())
    strangers = numbers["ood"]["items"]
    let_in = round(first["ood"] * strangers)
    assert f"{let_in:,} of {strangers:,} open-set queries" in page
    assert f"{let_in:,} are answered" in page
    assert f"<title>{title}</title>" in unescape(page)


def test_queries_stand_in_their_group_with_their_own_neighbours(place, page, searched):
    queries, found, right, _ = searched
    numbers = json.loads((place / "numbers.json").read_text())
    made = [numbers.get("largest_guarantee"), *numbers["guarantees"]]
    value = next(p["threshold"] for p in made if p and p["threshold"] is not None)
    shown = [one for one in examples(page) if one["key"] != "open_set"]
    assert len(shown) >= 8
    for one in shown:
        row = queries.ids.index(one["query"])
        unknown = bool(found.unknown[row])
        p = float(found.label_probability[row])
        accepted = p >= value and not unknown
        fate = ("right" if right[row] else "wrong") if accepted else None
        assert one["key"] == (fate or ("unknown" if unknown else "abstained"))
        assert one["badge"] == ("unknown" if unknown else "known")
        predicted, said = re.fullmatch(r"(.*), ([\d.]+)\s%", one["predicted"]).groups()
        assert predicted == found.label[row]
        assert float(said) == pytest.approx(100 * p, abs=0.51)
        assert [name for _, name, _ in one["found"]] == found.ids[row].tolist()
        for rank, (frame, _, caption) in enumerate(one["found"]):
            same = found.labels[row, rank] == queries.classes[row]
            assert frame == ("right" if same else "wrong")
            assert ("✓" in caption, "✗" in caption) == (same, not same)
            assert found.labels[row, rank] in caption
            said = float(re.search(r"([\d.]+)\s%", caption)[1])
            assert said == pytest.approx(100 * float(found.match_probability[row, rank]), abs=0.51)
    strange = [one for one in examples(page) if one["key"] == "open_set"]
    assert len(strange) == 4
    assert all(frame == "" for one in strange for frame, _, _ in one["found"])


def test_pictures_are_those_of_the_files(place, page):
    one = examples(page)[0]
    article = re.search(r"<article.*?</article>", page, re.S)[0]
    pictures = re.findall(r'<img src="data:image/png;base64,([^"]+)"', article)
    names = [one["query"], *(name for _, name, _ in one["found"])]
    assert len(pictures) == len(names) == 6
    for name, picture in zip(names, pictures, strict=True):
        shown = np.array(Image.open(io.BytesIO(base64.b64decode(picture))))
        original = np.array(Image.open(place / "photos" / name).convert("RGB"))
        assert np.array_equal(shown, original)


def test_the_page_needs_nothing_and_repeats_nothing(page):
    bare = re.sub(r'xmlns(:\w+)?="[^"]*"|<pre>.*?</pre>', "", page, flags=re.S)
    assert "<script" not in page
    assert not re.search(r'(src|href)="(?!data:|#)', bare)
    assert "http:" not in bare
    assert "https:" not in bare
    assert "default-src 'none'" in page
    assert "@media print" in page
    assert "prefers-color-scheme: dark" in page
    assert "@media (min-width: 1100px)" in page
    text = plain(
        re.sub(r"<pre>.*?</pre>|<article.*?</article>|<title>.*?</title>", "", page, flags=re.S)
    )
    sentences = [s for s in re.split(r"(?<=[.:;?]) ", text) if len(s.split()) >= 6]
    sentences = [s for s in sentences if len(re.findall(r"[^\W\d]+", s)) >= 4]  # not of numbers
    assert len(sentences) > 10
    assert len(set(sentences)) == len(sentences), [s for s in sentences if sentences.count(s) > 1]
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_numbers_come_with_intervals_and_where_they_are_from(place, page, searched):
    queries, _, right, index = searched
    n, k = len(right), int(right.sum())
    row = re.search(r'<th scope="row">predicted label is right</th>(.*?)</tr>', page)[1]
    cells = [unescape(x) for x in re.findall(r"<td[^>]*>(.*?)</td>", row)]
    assert float(cells[0].split("\u00a0")[0]) == pytest.approx(100 * k / n, abs=0.5)
    low, high = (float(x) for x in re.findall(r"\d+", cells[1]))
    assert low < 100 * k / n < high
    assert cells[2] == str(n)
    facts = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", page))
    origin = Origin.read(SavedFile(place / "index"))
    assert origin.fingerprint[:16] in facts["Items"]
    assert "seed 0" in facts["Items"]
    assert queries.fingerprint[:16] in facts["Queries"]
    assert facts["Model"] == "my_model:embedder"
    versions = f"laplace_metric {__version__}, torch {torch.__version__}, numpy {np.__version__}"
    assert versions in facts["Versions"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", facts["Written"])
    assert f"guarantees from {len(index.calibration.known)} queries" in facts["Calibration"]
    assert "each assessed by a fit to the others" in facts["Calibration"]  # of fewer than 1,000
    assert "laplace-metric report index" in unescape(page)


def test_a_page_says_which_queries_fitted_and_which_tested():
    g = torch.Generator().manual_seed(0)
    y = torch.arange(400) % 4
    x = torch.eye(8)[y] + 0.5 * torch.randn(400, 8, generator=g)
    embedder = LaplaceEmbedder(torch.nn.Linear(8, 6)).fit(x[:200], y[:200])
    index = embedder.index(x[:200], y[:200])
    index.calibrate(x[200:], y[200:], cross_fit=0)
    half = assessed_by(index.calibration)
    assert half.startswith(
        "guarantees from 100 queries, the probabilities fitted to the other half"
    )
    index.calibrate(x[200:], y[200:], cross_fit=5)
    assert assessed_by(index.calibration).startswith(
        "probabilities and guarantees from 200 queries"
    )
    own = assessed_by(embedder.cross_index(x[:200], y[:200], progress=False).calibration)
    assert own.startswith("probabilities and guarantees from 200 items of the index, of ")
    assert "half" not in own
    assert assessed_by(None) == "none"


def write_texts(path: Path, n: int, seed: int, extra: str = "") -> None:
    g = np.random.default_rng(seed)
    lines = ["text,label"]
    for i in range(n):
        letters = "abcde" if i % 2 else "vwxyz"
        words = "".join(g.choice(list(letters + "klm"), 12))
        lines.append(f"{words}{extra},{'early' if i % 2 else 'late'}")
    path.write_text("\n".join(lines))


def test_texts_are_quoted_and_shown_as_text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_texts", raising=False)
    (tmp_path / "my_texts.py").write_text(LETTERS)
    write_texts(tmp_path / "t.csv", 120, 0, " <b>&amp;</b>")
    write_texts(tmp_path / "q.csv", 60, 1, " " + "n" * 2 * LONGEST)
    assert main(["fit", "t.csv", "--model", "my_texts:model", "--holdout", "0.4", "--quiet"]) == 0
    assert main(["index", "t.csv", "--posterior", "posterior", "--quiet"]) == 0
    assert main(["report", "index", "q.csv", "--quiet"]) == 0
    page = (tmp_path / "report.html").read_text()
    assert "<b>&amp;</b>" not in page
    assert "&lt;b&gt;&amp;amp;&lt;/b&gt;" in page
    quoted = re.findall(r"<blockquote>(.*?)</blockquote>", page)
    assert max(len(unescape(text)) for text in quoted) == LONGEST
    assert any(text.endswith("…") for text in quoted)
    (tmp_path / "t.csv").write_text("text,label\nnew,early\n")
    assert main(["report", "index", "q.csv", "--quiet", "--overwrite"]) == 0
    changed = (tmp_path / "report.html").read_text()
    assert "&lt;b&gt;" not in changed
    assert 'class="id"' in changed


def test_vectors_are_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_vectors("x", 400)
    assert main(["fit", "x.npz", "--holdout", "0.5", "--quiet"]) == 0
    assert main(["index", "x.npz", "--posterior", "posterior", "--quiet"]) == 0
    assert main(["report", "index", "x.npz", "--quiet"]) == 0
    page = (tmp_path / "report.html").read_text()
    assert "<img" not in page
    assert page.count('class="id"') >= 6 * 2
    said = refused(["search", "index", "x.npz", "--picture", "p.png"], capsys)
    assert "needs images or texts" in said


def test_items_that_are_gone_are_named(place, searched, tmp_path):
    queries = searched[0]
    write_images(tmp_path / "few", np.stack([np.zeros((8, 8), np.uint8)] * 6), np.arange(6))
    os.rename(place / "photos", place / "moved")
    try:
        given = ["report", "index", str(tmp_path / "few"), "--output", str(tmp_path / "r.html")]
        assert main([*given, "--quiet"]) == 0
    finally:
        os.rename(place / "moved", place / "photos")
    page = (tmp_path / "r.html").read_text()
    assert page.count("<img") == len(examples(page)) > 0
    assert 'class="id"' in page
    assert len(queries) == 120


def test_a_picture_from_elsewhere_is_not_shown(tmp_path):
    write_images(tmp_path / "items", np.zeros((1, 8, 8), np.uint8), np.array([0]))
    Image.new("RGB", (4, 4)).save(tmp_path / "private.png")
    inside = Pictures(tmp_path / "items", inside=True).picture
    assert look_by(inside, "class 0/0000.png").picture is not None
    assert look_by(inside, "../private.png").picture is None
    assert look_by(inside, str(tmp_path / "private.png")).picture is None
    anywhere = Pictures(tmp_path / "items").picture
    assert look_by(anywhere, "../private.png").picture is not None
    assert look_by(anywhere, "none.png").picture is None


def test_large_pictures_become_small():
    noise = np.random.default_rng(0).integers(0, 255, (900, 1200, 3), dtype=np.uint8)
    uri = picture_uri(Image.fromarray(noise))
    shown = Image.open(io.BytesIO(base64.b64decode(uri.split(",")[1])))
    assert shown.size == (SIDE, SIDE * 3 // 4)
    assert len(uri) < 20_000


def test_each_class_has_a_row_the_weakest_first(place, page, searched):
    queries, found, _, _ = searched
    numbers = json.loads((place / "numbers.json").read_text())
    made = next(m for m in numbers["guarantees"] if m["threshold"] is not None)
    accepted = (found.label_probability.numpy() >= made["threshold"]) & ~found.unknown.numpy()
    truth = np.array(queries.classes)
    section = re.search(r"<h2>Which answers are weakest\?</h2>(.*?)</section>", page, re.S)[1]
    rows = re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', section)
    assert {name for name, _ in rows} == set(truth)
    shares = []
    for name, cells in rows:
        told = [plain(cell) for cell in re.findall(r"<td>(.*?)</td>", cells)]
        given, own = accepted & (found.label == name), truth == name
        assert f"{(given & own).sum()} of {given.sum()}" in told[0]
        assert f"{(accepted & own).sum()} of {own.sum()}" in told[2]
        for other in set(truth[given & ~own]):
            n = int((truth[given & ~own] == other).sum())
            assert f"{other} ({n})" in told[1] or told[1].count("(") == 3
        shares.append((given & own).sum() / max(1, given.sum()) if given.any() else 2)
    assert shares == sorted(shares)


def test_coarser_answers_have_a_row_for_each_level(place, searched, capsys):
    queries, _, _, index = searched
    parity = {name: "odd" if int(name.split()[-1]) % 2 else "even" for name in set(queries.classes)}
    table = "\n".join(["label,parity", *(f"{name},{group}" for name, group in parity.items())])
    (place / "parity.csv").write_text(table)
    asked = ["report", "index", "photos", "--output", "levels.html", "--coarser"]
    assert main([*asked, "parity.csv", "--json", "levels.json", "--quiet"]) == 0
    numbers = json.loads((place / "levels.json").read_text())
    made = next(m for m in numbers["guarantees"] if m["threshold"] is not None)
    rule = index.guarantee_by_level(made["guaranteed"], parity)
    found = index.evaluate_answers(queries.read(range(len(queries))), queries.classes, rule)
    page = (place / "levels.html").read_text()
    section = re.search(r"<h2>What would coarser answers give\?</h2>(.*?)</section>", page, re.S)[1]
    rows = re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', section)
    assert [name for name, _ in rows] == ["label", "level 1"]
    for (n, right, _), (_, cells), level in zip(found.levels.values(), rows, (0, 1), strict=True):
        if level in rule.refused:
            assert "none given: " in plain(cells)
        else:
            assert f"{n} of {len(found)}" in plain(cells)
            assert f"{right} of {n}" in plain(cells)
    (place / "parity.csv").write_text("label,parity\nclass 1,odd")
    assert main([*asked, "parity.csv", "--overwrite"]) == 2
    assert "--coarser parity.csv: coarser, level 1 has no group of" in capsys.readouterr().err


def test_a_table_has_every_query_with_what_to_look_at_first(place, searched, capsys):
    queries, _, _, index = searched
    asked = ["report", "index", "photos", "--output", "listed.html", "--quiet"]
    more = ["--open-set", "strange", "--table", "listed.csv", "--json", "listed.json"]
    assert main([*asked, *more]) == 0
    with (place / "listed.csv").open(newline="") as file:
        listed = list(csv.DictReader(file))
    every = [row for row in listed if row["outcome"] != LOOK]
    rows = [row for row in every if row["class"]]
    assert sorted(row["query"] for row in rows) == sorted(queries.ids)
    strange = [row for row in every if not row["class"]]
    assert len(strange) == len(open_source(place / "strange"))
    assert {row["outcome"] for row in strange} <= {"open-set query, answered", "abstained"}
    numbers = json.loads((place / "listed.json").read_text())
    made = [m for m in numbers["guarantees"] if m["threshold"] is not None]
    lead = max(
        (m for m in made if m["threshold"] == made[0]["threshold"]), key=lambda m: m["guaranteed"]
    )
    rule = index.guarantee(precision=lead["guaranteed"])
    answers = index.ask(queries.read(range(len(queries))), rule)
    given = dict(zip(queries.ids, answers, strict=True))
    truth = dict(zip(queries.ids, queries.classes, strict=True))
    for row in rows:
        answer = given[row["query"]]
        assert row["reason"] == answer.reason
        assert row["class"] == truth[row["query"]]
        assert float(row["probability"]) == pytest.approx(answer.probability, abs=1e-5)
        if not answer.reason:
            assert row["outcome"] == ("right" if answer.label == row["class"] else "wrong")
            assert row["answer"] == answer.label
        else:
            would = "abstained, would be right" if row["answer"] == row["class"] else "abstained"
            assert row["outcome"] == would
    order = ["open-set query, answered", "wrong", LOOK]
    order += ["abstained, would be right", "abstained", "right"]
    places = [order.index(row["outcome"]) for row in listed]
    assert places == sorted(places)
    wrong = [float(row["probability"]) for row in rows if row["outcome"] == "wrong"]
    assert wrong == sorted(wrong, reverse=True)
    assert main([*asked, "--table", "listed.txt", "--overwrite"]) == 2
    assert "end it in .csv, .json" in capsys.readouterr().err


def test_items_whose_neighbours_disagree_are_shown_and_listed(place, page, searched):
    *_, index = searched
    review = index.suspicious_labels(len(index))
    other = np.flatnonzero(review.suggested != review.labels)
    assert len(other) > 0
    asked = ["report", "index", "photos", "--output", "labels.html", "--table", "labels.csv"]
    assert main([*asked, "--quiet"]) == 0
    with (place / "labels.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["outcome"] == LOOK]
    expected = [(review.ids[i], review.labels[i], review.suggested[i]) for i in other]
    assert [(row["query"], row["class"], row["answer"]) for row in rows] == expected
    for row, i in zip(rows, other, strict=True):
        assert float(row["probability"]) == pytest.approx(
            float(review.suggested_probability[i]), abs=1e-6
        )
        assert not row["reason"]
    section = re.search(r"<h2>Which labels should be looked at\?</h2>(.*?)</section>", page, re.S)[
        1
    ]
    assert f"{len(other)} of the {len(index)} items have another label" in plain(section)
    figure = r'<figure title="(.*?)">\s*<img src="(.*?)".*?<figcaption>(.*?)</figcaption>'
    shown = re.findall(figure, section, re.S)
    assert [unescape(name) for name, _, _ in shown] == [row[0] for row in expected[:LABELS_SHOWN]]
    for (name, uri, caption), (_, label, suggested) in zip(shown, expected, strict=False):
        with Image.open(place / "photos" / unescape(name)) as image:
            assert picture_uri(image.convert("RGB")) == uri
        told = plain(caption)
        assert f"{unescape(name).replace('/', '/ ')} {label} " in told, "the file and its label"
        assert f"rather {suggested} " in told


def test_labels_of_items_are_looked_at_only_where_they_can_be(searched, monkeypatch, capsys):
    *_, index = searched
    gallery = LoadedIndex(index, None, Origin())
    some = label_rows(gallery, Reporter())
    assert [row.probability for row in some] == sorted(row.probability for row in some)
    monkeypatch.setattr(label_module, "LOOKED_THROUGH", len(index) - 1)
    assert label_rows(gallery, Reporter()) == []
    assert "labels of items are reviewed up to" in capsys.readouterr().err
    monkeypatch.undo()
    x = torch.randn(300, 4)
    bare = LaplaceEmbedder.from_embeddings(x, torch.arange(300) % 3)
    assert label_rows(LoadedIndex(bare.index(x), None, Origin()), Reporter()) == []
    uncalibrated = bare.index(x, torch.arange(300) % 3)
    assert label_rows(LoadedIndex(uncalibrated, None, Origin()), Reporter()) == []
    matched = bare.index(x)
    matched.calibrate(x + 0.3 * torch.randn(300, 4), matches=[[item] for item in range(300)])
    assert label_rows(LoadedIndex(matched, None, Origin()), Reporter()) == []
