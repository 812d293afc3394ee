"""The calls that a stranger meets first run as they are printed, on digits."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import torch
from torch import nn

import laplace_metric as lm
from laplace_metric import datasets
from laplace_metric.calibration import Answers


def test_the_first_calls(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    digits, new = datasets.load("digits"), datasets.load("digits", "test")
    vectors, labels = digits.pixels().flatten(1), digits.labels
    x, queries = new.pixels(slice(0, 20)).flatten(1), new.pixels().flatten(1)
    torch.manual_seed(0)
    model, loader = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16)), None
    loader = [(vectors[i : i + 100], labels[i : i + 100]) for i in range(0, 600, 100)]

    embedder = lm.LaplaceEmbedder(model).fit(loader)
    e = embedder(x)
    assert e.mean.shape == e.variance.shape == (20, 16)
    assert e.sample(8).shape == (8, 20, 16)
    assert e.epistemic.shape == e.ambiguity.shape == (20,)
    embedder.tune_prior()
    embedder.save("p.safetensors")

    guard = lm.Guard(vectors, labels, precision=0.95)
    answers = guard.ask(queries)
    assert isinstance(answers, Answers)
    right = answers.label[answers.answered] == new.labels.numpy()[answers.answered]
    assert right.mean() >= 0.95
    assert set(answers.reason) >= {"", "unfamiliar"}
    assert answers.probability.shape == (len(queries),)
    guard.at(0.99)
    guard.save("guard.safetensors")

    index = embedder.index(vectors[600:1000], labels[600:1000])
    held_out, held_labels = vectors[1000:], labels[1000:]
    index.calibrate(held_out, held_labels)
    rule = index.guarantee(precision=0.8)
    found = rule(index.search(queries, k=10))
    assert isinstance(rule, lm.Rule)
    assert type(found) is type(answers)

    cosine = np.random.default_rng(0).random(2000)
    relevant = np.random.default_rng(1).random(2000) < cosine**2
    rule = lm.calibrate_scores(cosine, relevant).guarantee(fpir=0.1)
    assert type(rule(cosine)) is type(answers)
    assert isinstance(rule, lm.Rule)


def test_scores_give_the_same_types_without_torch(tmp_path):
    code = (
        "import sys, numpy as np; sys.modules['torch'] = None; import laplace_metric as lm;"
        "cosine = np.random.default_rng(0).random(2000);"
        "relevant = np.random.default_rng(1).random(2000) < cosine**2;"
        "rule = lm.calibrate_scores(cosine, relevant).guarantee(fpir=0.1);"
        "answers = rule(cosine);"
        "assert isinstance(rule, lm.Rule) and isinstance(answers, lm.Answers);"
        "rule.save('rule.safetensors'); assert lm.Rule.load('rule.safetensors') == rule"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
