"""How the numbers of a record came about, and what was tried on the way."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.report.reading import Part, Record, known

SIZES = {
    "seeds": "trainings of each method",
    "rounds": "rounds of a training, 20 batches of 128 each",
    "short": "rounds of a training that is tuned",
    "trials": "settings tried for each method",
    "train": "training images read",
    "queries": "test images of each set",
    "fit": "images of a post-hoc fit",
    "draws": "joint draws of the calibration",
    "resamples": "bootstrap resamples",
    "embedding": "numbers of an embedding",
    "side": "pixels given to the image encoder",
    "corrupted": "images of each corruption and severity",
}


def run_facts(record: Record) -> dict[str, str]:
    """Size, machine, versions, commits."""
    machine = record.get("environment") or {}
    cuda = machine.get("cuda")
    found = {"size": str(record.get("size", ""))}
    for key, value in (record.get("settings") or {}).items():
        if key != "name":
            found[SIZES.get(key, key)] = f"{value:,}" if isinstance(value, int) else str(value)
    found["machine"] = ", ".join(
        [str(machine.get("system", "")), f"{machine.get('cores')} cores",
         f"{machine.get('threads')} threads", str(cuda or "no GPU")]
    )  # fmt: skip
    packages = {"Python": machine.get("python"), **(machine.get("packages") or {})}
    found["versions"] = ", ".join(f"{name} {version}" for name, version in packages.items())
    commits = record.get("commits") or [machine.get("git")]
    found["git commits"] = ", ".join(c for c in commits if c) or "not noted"
    return {key: value for key, value in found.items() if value}


def trials(part: Part) -> list[tuple[str, list[tuple[str, list[str]]]]]:
    """Method -> (settings, results) of each trial, the first with the defaults."""
    return [
        (one["method"], [_trial(trial) for trial in one["tried"]])
        for one in part.record.get("tuned", [])
        if one["task"] == part.task and one["method"] in part.methods
    ]


def results(record: Record) -> list[str]:
    """What trials are compared by: the numbers beside their settings."""
    return list(dict.fromkeys(
        key for one in record.get("tuned", []) for trial in one["tried"] for key in trial
        if key != "settings"
    ))  # fmt: skip


def _trial(trial: dict[str, Any]) -> tuple[str, list[str]]:
    settings = ", ".join(f"{key} {_short(value)}" for key, value in trial["settings"].items())
    return settings, [_short(value) for key, value in trial.items() if key != "settings"]


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if known(value) else "n/a"
    return value if isinstance(value, str) else json.dumps(value)
