"""``decide``: a table of judged hits in, a rule out; new hits in, decisions out."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from laplace_metric.calibration import DecisionRule
from laplace_metric.cli import main


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
    assert "precision at least 90% with 95% confidence" in capsys.readouterr().out
    assert main(["decide", new, "--apply", "rule.json", "--json", "-"]) == 0
    numbers = json.loads(capsys.readouterr().out)
    rows = list(csv.DictReader((tmp_path / "decisions.csv").open()))
    assert len(rows) == 300
    assert {row["decision"] for row in rows} == {"answer", "abstain"}
    of_first = {row["query"]: row for row in rows if row["rank"] == "1"}
    assert numbers["answered"] == sum(r["decision"] == "answer" for r in of_first.values())
    best = [max((r for r in rows if r["query"] == q), key=lambda r: sign * float(r["score"]))
            for q in of_first]  # fmt: skip
    assert best == list(of_first.values())
    rule = DecisionRule.load(tmp_path / "rule.json")
    for row in of_first.values():
        assert (float(row["match_probability"]) >= rule.value) == (row["decision"] == "answer")


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
    assert "false positive identification rate at most 10%" in out.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give one of --precision, --recall, --fmr, --fpir"),
        (["--precision", "0.9", "--recall", "0.9"], "give one of --precision"),
        (["--precision", "0.9", "--output", "rule.csv"], "end it in .json"),
        (["--precision", "0.9999"], "--precision 0.9999 cannot be guaranteed"),
        (["--apply", "judged.csv"], "no score calibration"),
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


def test_a_rule_by_one_score_is_shown_and_needs_no_torch(tmp_path):
    lines = Path(write(tmp_path / "judged.csv", 300)).read_text().splitlines()
    rows = [line.split(",") for line in lines]
    pairs = [rows[0], *[[f"p{i}", *row[1:]] for i, row in enumerate(rows[1:])]]
    (tmp_path / "pairs.csv").write_text("\n".join(map(",".join, pairs)))
    code = (
        "import sys; sys.modules |= dict.fromkeys(['torch', 'safetensors'])\n"
        "from laplace_metric.cli import main\n"
        "assert main(['decide', 'pairs.csv', '--precision', '.9']) == 0\n"
        "assert main(['decide', 'pairs.csv', '--apply', 'rule.json', '--quiet']) == 0"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    score = DecisionRule.load(tmp_path / "rule.json").score
    assert f"accept a similarity of {score:.6g} or more" in done.stdout
    assert "FNMR): relevant hits, rejected: " in done.stdout
    decided = list(csv.DictReader((tmp_path / "decisions.csv").open()))
    assert all((float(r["score"]) >= score) == (r["decision"] == "answer") for r in decided)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("query,relevant\na,1\n", "no column 'score'"),
        ("query,score,relevant\na,high,1\n", "column 'score' holds no number"),
        ("query,score,relevant\na,nan,1\n", "score of row 1 is nan"),
        ("query,score,relevant\na,.5,maybe\n", "relevant is 'maybe'"),
        ("query,item,score,relevant\na,b,.5,1\na,b,.5,1\n", "query 'a' has the item 'b' twice"),
        ("query,score,relevant\n", "holds no row"),
    ],
)
def test_a_bad_table_is_named(tmp_path, monkeypatch, capsys, text, message):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "bad.csv"
    path.write_text(text)
    assert main(["decide", str(path), "--precision", "0.9"]) == 2
    assert message in capsys.readouterr().err
