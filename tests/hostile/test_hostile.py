"""A thousand generated bad calls, in a process of their own, and how they are judged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest
import torch

from laplace_metric import Monitor
from laplace_metric.errors import InputError
from tests.hostile import attack, outcomes
from tests.hostile.outcomes import BOUNDARY, CRASH, ENDLESS, NAMED, NON_FINITE, RIGHT, USER

CALLS = 1000


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Calls write where paths without a folder point to."""
    monkeypatch.chdir(tmp_path)


def test_a_thousand_calls(tmp_path):
    """None crashes without a name, returns NaN in silence, or never ends."""
    command = [sys.executable, "-m", "tests.hostile", "--calls", str(CALLS)]
    done = subprocess.run(
        [*command, "--output", str(tmp_path / "table")],
        cwd=outcomes.ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert (tmp_path / "table.json").exists(), done.stderr[-2000:]
    table = json.loads((tmp_path / "table.json").read_text())
    assert table["calls"] == sum(table["classes"].values()) == CALLS
    assert table["cpu_seconds"] < 60
    assert table["classes"][RIGHT] > CALLS / 4
    assert table["classes"][NAMED] > CALLS / 4
    new = [e for e in table["places"] if attack.keys({"places": [e]}) - attack.known()]
    assert not new, "\n".join(f"{e['place']}: {e['example']} ({e['error']})" for e in new)


def test_a_call_is_decided_by_seed_and_number():
    first, second = (attack.one(7, 3) for _ in range(2))
    assert (first.call, first.outcome) == (second.call, second.outcome)
    assert attack.one(8, 3).call != first.call


def _raises_named() -> None:
    raise InputError("k=0: pass more.")


def _crashes() -> None:
    from laplace_metric.evaluation._bootstrap import _draw

    _draw("x", torch.Generator())


def _a_layer_of_ours_crashes() -> None:
    from baselines.base.heads import ConcentrationHead

    ConcentrationHead(4)(torch.ones(2, 5))


def _names_the_keyword() -> None:
    Monitor({"uncertainty": torch.rand(60)}, **{outcomes.UNKNOWN: 1})


def _calls_wrongly() -> None:
    from laplace_metric.models._call_model import call_model

    call_model(lambda: 1, {"x": 1})


def _a_model_crashes() -> None:
    from laplace_metric.models._call_model import call_model

    call_model(torch.nn.Linear(3, 2), torch.ones(2, 5))


def _never_ends() -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        pass


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (lambda: torch.ones(2), RIGHT),
        (lambda: {"mean": torch.tensor([0.0, float("nan")])}, NON_FINITE),
        (lambda: {"concentration": torch.tensor([float("inf")])}, RIGHT),
        (_raises_named, NAMED),
        (lambda: _raises_named(no_such=1), BOUNDARY),
        (_names_the_keyword, BOUNDARY),
        (_crashes, CRASH),
        (_a_layer_of_ours_crashes, CRASH),
        (_calls_wrongly, CRASH),
        (_a_model_crashes, USER),
        (_never_ends, ENDLESS),
    ],
)
def test_classes(function, kind, monkeypatch):
    monkeypatch.setattr(attack, "SECONDS", 0.2)
    outcome, _ = attack.guarded("call", function)
    assert outcome.kind == kind


def test_the_code_of_a_user():
    """An error out of the user's model is the user's."""
    from laplace_metric.training import train_embedder

    def loss(*_):
        raise KeyError("mine")

    def train():
        train_embedder(torch.nn.Linear(2, 2), [(torch.ones(2, 2), [0, 1])], loss, epochs=1)

    assert attack.guarded("call", train)[0].kind == USER
