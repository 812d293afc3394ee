"""``decide``: a table of judged hits in, a rule out; new hits in, decisions out."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from laplace_metric import LaplaceEmbedder
from laplace_metric.calibration import ClassRule, Rule
from laplace_metric.cli import main
from laplace_metric.cli._decide import Hits


def write(path, n, seed=0, judged=True, sign=1.0):
    g = np.random.default_rng(seed)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["query", "item", "score", *(["relevant"] if judged else [])])
        for query in range(n):
            right = g.random() < 0.7
            for item in g.permutation(3):  # in no order
                hit = bool(item == 0 and right)
                score = sign * g.normal(0.85 if hit else 0.6, 0.07)
                rows.writerow([f"q{query}", f"d{item}", score, *([int(hit)] if judged else [])])
    return str(path)


@pytest.mark.parametrize(("kind", "sign"), [("similarity", 1.0), ("distance", -1.0)])
def test_a_rule_is_learnt_and_applied(tmp_path, monkeypatch, capsys, kind, sign):
    monkeypatch.chdir(tmp_path)
    judged = write(tmp_path / "judged.csv", 600, sign=sign)
    new = write(tmp_path / "new.csv", 100, seed=1, judged=False, sign=sign)
    assert main(["decide", judged, "--precision", "0.9", "--kind", kind]) == 0
    assert "a precision of at least 90% with 95% confidence" in capsys.readouterr().out
    assert main(["decide", new, "--apply", "rule.safetensors", "--json", "-"]) == 0
    numbers = json.loads(capsys.readouterr().out)
    rows = list(csv.DictReader((tmp_path / "answers.csv").open()))
    assert len(rows) == 300
    of_first = {row["query"]: row for row in rows if row["rank"] == "1"}
    assert {row["reason"] for row in of_first.values()} == {"", "uncertain"}
    assert numbers["answered"] == sum(row["answered"] == "True" for row in rows) > 0
    for row in rows:  # the answer is the first hit alone
        first = of_first[row["query"]]
        if row is not first:
            assert row["answered"] == "False"
            assert row["reason"] == (first["reason"] or "not the first hit")
    best = [max((r for r in rows if r["query"] == q), key=lambda r: sign * float(r["score"]))
            for q in of_first]  # fmt: skip
    assert best == list(of_first.values())
    rule = Rule.load(tmp_path / "rule.safetensors")
    for row in of_first.values():
        assert (float(row["match_probability"]) >= rule.value) == (row["answered"] == "True")


def write_labelled(path, n, seed, judged=True):
    """Hits of three labels, in no order; those with the label "rare" are mostly wrong."""
    g = np.random.default_rng(seed)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["query", "item", "score", "kind", *(["relevant"] if judged else [])])
        for query in range(n):
            kind = str(g.choice(["bag", "coat", "rare"], p=[0.48, 0.48, 0.04]))
            hit = g.random() < (0.1 if kind == "rare" else 0.98)
            hits = [("d0", 0.9 + 0.05 * g.random(), kind, hit), ("d1", 0.3, "other", False)]
            for at in g.permutation(2):
                item, score, own, right = hits[at]
                rows.writerow([f"q{query}", item, score, own, *([int(right)] if judged else [])])
    return str(path)


def test_a_rule_of_each_label_is_learnt_and_applied(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    judged = write_labelled(tmp_path / "judged.csv", 700, 0)
    new = write_labelled(tmp_path / "new.csv", 200, 1, judged=False)
    by_class = ["--by-class", "--label-column", "kind"]
    assert main(["decide", judged, "--precision", "0.9", *by_class]) == 0
    told = capsys.readouterr().out
    assert "a precision of at least 90% of the answers of each of these classes" in told
    assert "2 of 3 classes" in told
    assert "answers 1 classes never: 'rare'" in told
    assert "  coat: 9" in told
    assert isinstance(Rule.load("rule.safetensors"), ClassRule)
    assert main(["decide", new, "--apply", "rule.safetensors", "--label-column", "kind"]) == 0
    first = [row for row in csv.DictReader((tmp_path / "answers.csv").open()) if row["rank"] == "1"]
    answered = {kind: [] for kind in ("bag", "coat", "rare")}
    for row in first:
        answered[row["kind"]].append(row["answered"] == "True")
    assert not any(answered["rare"])
    assert np.mean(answered["bag"]) > 0.5
    capsys.readouterr()
    for words, message in (
        (["--precision", "0.9", "--by-class"], "--label-column"),
        (["--recall", "0.9", *by_class], "--by-class: give --precision P"),
        (["--precision", "0.9", "--of", "hits", *by_class], "of --of match"),
        (["--apply", "rule.safetensors"], "--label-column"),
    ):
        assert main(["decide", judged, *words, "--overwrite"]) == 2
        assert message in capsys.readouterr().err
    (tmp_path / "judged.csv").write_text((tmp_path / "judged.csv").read_text().replace("bag", ""))
    assert main(["decide", judged, "--precision", "0.9", *by_class, "--overwrite"]) == 2
    assert "is empty: give each first hit one" in " ".join(capsys.readouterr().err.split())


def test_ragged_lists_and_unjudged_hits(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "judged.csv"
    write(path, 400)
    lines = path.read_text().splitlines()
    lines = [line for i, line in enumerate(lines) if i == 0 or i % 7]
    lines[5] = lines[5].rsplit(",", 1)[0] + ","
    path.write_text("\n".join(lines))
    assert main(["decide", str(path), "--fpir", "0.1", "--output", "fpir.json"]) == 0
    out = capsys.readouterr()
    assert "1 of" in out.err
    assert "are not judged" in out.err
    assert "false positive identification rate of at most 10%" in out.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give one of --precision, --recall, --fmr, --fpir"),
        (["--precision", "0.9", "--recall", "0.9"], "give one of --precision"),
        (["--precision", "0.9999"], "--precision 0.9999 cannot be guaranteed"),
        (["--apply", "judged.csv"], "is not a safetensors file"),
        (["--apply", "missing.json"], "missing.json does not exist"),
        (["--fmr", "0.001", "--cross-fit", "5"], "calibrate with --cross-fit 0"),
        (["--fmr", "0.001"], "which has 100. Calibrate on more, or ask for less."),
    ],
)
def test_mistakes_are_named(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    judged = write(tmp_path / "judged.csv", 200)
    assert main(["decide", judged, *words]) == 2
    assert message in capsys.readouterr().err


def test_options_that_do_not_go_together_are_told_before_the_table_is_read(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    judged = write(tmp_path / "judged.csv", 300)
    assert main(["decide", judged, "--precision", "0.8", "--output", "own.json"]) == 0
    x = np.random.default_rng(0).normal(size=(200, 4)) + 3 * np.eye(4)[np.arange(200) % 4]
    y = np.arange(200) % 4
    index = LaplaceEmbedder.from_embeddings(x, y).cross_index(x, y, progress=False)
    index.guarantee(precision=0.5).save("of_index.json")
    capsys.readouterr()
    for words, message in (
        ("--apply of_index.json", "--apply: the rule is of an index"),
        ("--apply own.json --kind distance", "--kind distance is for learning a rule"),
        ("--apply own.json --of hits", "--of hits is for learning a rule"),
        ("--apply own.json --confidence .9", "--confidence 0.9 is for learning a rule"),
        ("--apply own.json --cross-fit 0", "uses own.json as it was learnt. Leave --cross-fit out"),
        ("--recall .9 --of hits", "--recall is of one answer a query"),
    ):
        assert main(["decide", "missing.csv", *words.split()]) == 2
        assert message in capsys.readouterr().err
    given = ["--apply", "own.json", "--kind", "similarity", "--confidence", "0.95"]
    assert main(["decide", judged, *given]) == 0  # as it was learnt


def test_a_rule_by_one_score_is_shown_and_needs_no_torch(tmp_path):
    lines = Path(write(tmp_path / "judged.csv", 300)).read_text().splitlines()
    rows = [line.split(",") for line in lines]
    pairs = [rows[0], *[[f"p{i}", *row[1:]] for i, row in enumerate(rows[1:])]]
    (tmp_path / "pairs.csv").write_text("\n".join(map(",".join, pairs)))
    code = (
        "import sys; sys.modules |= dict.fromkeys(['torch', 'safetensors'])\n"
        "from laplace_metric.cli import main\n"
        "assert main(['decide', 'pairs.csv', '--precision', '.9']) == 0\n"
        "assert main(['decide', 'pairs.csv', '--apply', 'rule.safetensors', '--quiet']) == 0"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    score = Rule.load(tmp_path / "rule.safetensors").score
    assert f"accepts a similarity of {score:.6g} or more" in done.stdout
    assert "FNMR): relevant hits, rejected: " in done.stdout
    decided = list(csv.DictReader((tmp_path / "answers.csv").open()))
    assert all((float(r["score"]) >= score) == (r["answered"] == "True") for r in decided)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("query,relevant\na,1\n", "no column 'score'"),
        ("query,score,relevant\na,1,1\na,high,1\n", "score of row 2 is 'high', no number"),
        ("query,score,relevant\na,nan,1\n", "score of row 1 is nan"),
        ("query,score,relevant\na,.5,maybe\n", "relevant is 'maybe'"),
        ("query,item,score,relevant\na,b,.5,1\na,b,.5,1\n", "query 'a' has the item 'b' twice"),
        ("query,score,relevant\n", "holds no row"),
        ("query;score;relevant\na;.5;1\n", "has ';' between its columns"),
        ("query;score;relevant\na;0,5;1\n", "Write it with ',', and with '.' in numbers"),
        ("query\tscore\trelevant\na\t.5\t1\n", "Name it bad.tsv, or write it with ','"),
    ],
)
def test_a_bad_table_is_named(tmp_path, monkeypatch, capsys, text, message):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "bad.csv"
    path.write_text(text)
    assert main(["decide", str(path), "--precision", "0.9"]) == 2
    assert message in capsys.readouterr().err


# The order of a table, and what pandas writes.


def tied(n, seed=0, k=4):
    """Rows with scores of one decimal, the relevant ones first."""
    g = np.random.default_rng(seed)
    rows = []
    for query in range(n):
        right = g.random() < 0.85
        for place in range(k):
            hit = right and place == 0
            score = round(g.normal(0.8 if hit else 0.6, 0.1), 1)
            rows.append([f"q{query}", f"d{g.integers(10**9)}", str(score), str(int(hit))])
    return sorted(rows, key=lambda row: row[3], reverse=True)


HEADER = ["query", "item", "score", "relevant"]


def table(path, rows, items=True, judged=True):
    keep = [place for place in range(4) if (items or place != 1) and (judged or place != 3)]
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([[row[place] for place in keep] for row in [HEADER, *rows]])
    return path


def hits(path, judged=True):
    relevant = "relevant" if judged else None
    return Hits(path, query="query", score="score", item=None, relevant=relevant)


@pytest.mark.parametrize("items", [True, False])
def test_the_order_of_the_rows_decides_nothing(tmp_path, items):
    rows, found = tied(600), []
    for name in "abc":
        path = table(tmp_path / f"{name}.csv", rows, items)
        found.append(hits(path).learnt("similarity"))
        rows = [rows[i] for i in np.random.default_rng(ord(name)).permutation(len(rows))]
    rule = found[0].guarantee(precision=0.8)
    for other in found[1:]:
        np.testing.assert_array_equal(other.queries.probability, found[0].queries.probability)
        np.testing.assert_array_equal(other.queries.relevant, found[0].queries.relevant)
        assert str(other.guarantee(precision=0.8)) == str(rule)
    decided = []
    for name in "de":
        columns, answered = hits(
            table(tmp_path / f"{name}.csv", rows, items, judged=False), False
        ).decided(rule)
        assert 0 < answered.mean() < 1
        names = ["query", *(["item"] if items else []), "score", "rank", "answered", "reason"]
        decided.append(sorted(zip(*(columns[column] for column in names), strict=True)))
        rows = rows[::-1]
    assert decided[0] == decided[1]


@pytest.mark.parametrize("items", [True, False])
def test_no_judgement_stands_first_among_equal_scores(tmp_path, items):
    """Of rows with equal scores each is first equally often, whatever is relevant."""
    first, shares = [], []
    for seed in range(6):
        path = table(tmp_path / f"{seed}.csv", tied(400, seed), items)
        read = hits(path)
        rank, scores = read.ranked("similarity")
        top = read.score == scores[read.query, 0]
        relevant = np.array([cell == "1" for cell in read.columns["relevant"]])
        ties = np.bincount(read.query[top], minlength=400)
        mixed = np.bincount(read.query[top], relevant[top], minlength=400) * (ties > 1)
        here = top & relevant & (mixed[read.query] > 0)
        first += (rank[here] == 0).tolist()
        shares += (1 / ties[read.query[here]]).tolist()
    assert len(first) > 400
    assert np.mean(first) == pytest.approx(np.mean(shares), abs=0.1)  # four standard errors


def test_a_precision_of_a_table_sorted_by_relevance_is_kept(tmp_path):
    """Of rows in the order of the table nine of ten rules of .8 are broken, by a simulation."""
    new = hits(table(tmp_path / "new.csv", tied(2_000, 10**6)))
    relevant = np.array([cell == "1" for cell in new.columns["relevant"]])
    broken = 0
    for seed in range(15):
        rule = hits(table(tmp_path / f"{seed}.csv", tied(600, seed))).learnt("similarity", 0)
        columns, answered = new.decided(rule.guarantee(precision=0.8))
        first = np.array(columns["rank"]) == 1
        right = relevant[first][np.argsort(new.query[first])]
        broken += right[answered].mean() < 0.8
    assert broken <= 3


@pytest.mark.parametrize(
    ("one", "none", "missing"),
    [
        ("1.0", "0.0", ""),
        ("True", "False", "nan"),
        ("TRUE", "FALSE", "<NA>"),
        ("1", "0", "-1.0"),
        ("yes", "No", "None"),
        ("t", "f", " "),
    ],
)
def test_judgements_are_read_as_tables_write_them(tmp_path, one, none, missing):
    rows = tied(100)
    wanted = hits(table(tmp_path / "a.csv", [
        [*row[:3], "-1" if i % 50 == 0 else row[3]] for i, row in enumerate(rows)
    ])).learnt("similarity")  # fmt: skip
    cells = {"1": one, "0": none}
    found = hits(table(tmp_path / "b.csv", [
        [*row[:3], missing if i % 50 == 0 else cells[row[3]]] for i, row in enumerate(rows)
    ])).learnt("similarity")  # fmt: skip
    np.testing.assert_array_equal(found.queries.relevant, wanted.queries.relevant)
    np.testing.assert_array_equal(found.queries.probability, wanted.queries.probability)
    assert (wanted.queries.relevant == -1).any()


def test_columns_may_have_other_names(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = tied(400)
    table(tmp_path / "a.csv", rows)
    names = ["qid", "doc", "cosine", "label"]
    with (tmp_path / "b.csv").open("w", newline="") as file:
        csv.writer(file).writerows([names, *rows])
    asked = ["--precision", "0.6"]
    assert main(["decide", "a.csv", *asked, "--output", "a.json"]) == 0
    options = ["query", "item", "score", "relevant"]
    named = [word for option, name in zip(options, names, strict=True)
             for word in (f"--{option}-column", name)]  # fmt: skip
    assert main(["decide", "b.csv", *asked, *named, "--output", "b.json"]) == 0
    one, other = (Rule.load(f"{name}.json") for name in "ab")
    assert str(one) == str(other)
    assert main(["decide", "b.csv", "--apply", "b.json", *named[:6], "--output", "d.csv"]) == 0
    with (tmp_path / "d.csv").open(newline="") as file:
        assert next(csv.reader(file)) == [*names, "rank", "match_probability", "answered", "reason"]
    capsys.readouterr()
    for words, message in (
        (asked, "no column 'query'. Name it with --query-column; its columns: 'qid'"),
        ([*asked, *named[:2]], "no column 'score'. Name it with --score-column"),
        ([*asked, *named[:2], *named[4:6]], "no column 'relevant'. Name it with --relevant-column"),
        ([*asked, *named, "--item-column", "id"], "no column 'id'. Name it with --item-column"),
    ):
        assert main(["decide", "b.csv", *words, "--output", "c.json"]) == 2
        assert message in capsys.readouterr().err


def with_sessions(path, size=3):
    """The same table with a column of sessions, each of some queries."""
    rows = list(csv.DictReader(path.open()))
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, [*rows[0], "session"])
        table.writeheader()
        for row in rows:
            table.writerow({**row, "session": f"s{int(row['query'][1:]) // size}"})
    return rows


def test_a_column_of_groups_is_counted_and_all_hits_can_be_passed_on(tmp_path, capsys):
    path, rule = tmp_path / "judged.csv", tmp_path / "hits.safetensors"
    write(path, 900)
    with_sessions(path)
    learn = ["decide", str(path), "--precision", "0.8", "--group-column", "session"]
    assert main([*learn, "--output", str(tmp_path / "first.safetensors")]) == 0
    assert "cross-fitted queries of 300 groups" in capsys.readouterr().out
    learn[3] = "0.6"
    assert main([*learn, "--of", "hits", "--output", str(rule)]) == 0
    assert "at least 60% of the hits passed on are relevant" in capsys.readouterr().out
    new, answers = tmp_path / "new.csv", tmp_path / "answers.csv"
    write(new, 50, seed=1, judged=False)
    assert main(["decide", str(new), "--apply", str(rule), "--output", str(answers)]) == 0
    rows = list(csv.DictReader(answers.open()))
    least = Rule.load(rule).value
    for row in rows:
        assert (row["passed"] == "True") == (float(row["match_probability"]) >= least)


def test_a_query_of_two_groups_or_none_is_refused(tmp_path, capsys):
    path = tmp_path / "judged.csv"
    write(path, 60)
    with_sessions(path)
    for cell, message in (("other", "is of the groups"), ("", "session of row 1 is empty")):
        lines = path.read_text().splitlines()
        wrong = tmp_path / "wrong.csv"
        wrong.write_text("\n".join([lines[0], lines[1].rsplit(",", 1)[0] + f",{cell}", *lines[2:]]))
        command = ["decide", str(wrong), "--precision", "0.8", "--group-column", "session"]
        assert main(command) != 0
        assert message in capsys.readouterr().err
