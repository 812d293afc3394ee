"""A monitor on disk: ``monitor.json`` and a safetensors file (see ``files``)."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from laplace_metric._utils import files
from laplace_metric.errors import FileFormatError
from laplace_metric.monitor._martingale import Alarm, RunningRanks
from laplace_metric.monitor._monitor import Monitor, StreamState
from laplace_metric.monitor._windows import Quantiles, ShiftTest, WindowReport

MONITOR = files.FileKind("monitor", "a saved monitor", 1)


def save(monitor: Monitor, folder: Path) -> None:
    """Write all that decides what comes next, and the readings so far."""
    tracks = monitor.tracks.values()
    tensors = {"generator": monitor.generator.get_state()}
    for place, track in enumerate(tracks):
        tensors |= {f"{place}.{name}": x for name, x in _tensors(track).items()}
    content = {
        "window": monitor.window,
        "false_alarms": monitor.false_alarms,
        "names": list(monitor.tracks),
        "n": monitor.n,
        "alarms": [track.martingale.alarm and asdict(track.martingale.alarm) for track in tracks],
        "readings": [asdict(reading) for reading in monitor.readings],
    }
    files.write(folder, content, tensors, MONITOR)


def load(folder: Path) -> Monitor:
    """Back from ``save``."""
    content, tensors = files.read(folder, MONITOR)
    try:
        return _monitor(content, tensors)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise FileFormatError(f"{folder} is damaged: {error!r}.") from error


def _tensors(track: StreamState) -> dict[str, Tensor]:
    bets = track.martingale
    arrays = {
        "reference": track.reference,
        "seen": track.ranks.values,
        "window": track.window,
        "bets": bets.bets,
        "best": bets.best,
        "since": bets.since,
    }
    return {name: torch.from_numpy(np.ascontiguousarray(x)) for name, x in arrays.items()}


def _monitor(content: dict[str, Any], tensors: dict[str, Tensor]) -> Monitor:
    names = content["names"]
    reference = {name: tensors[f"{place}.reference"] for place, name in enumerate(names)}
    options = {name: content[name] for name in ("window", "false_alarms")}
    monitor = Monitor(reference, **options)
    monitor.generator.set_state(tensors["generator"])
    monitor.readings = [_reading(one) for one in content["readings"]]
    for place, track in enumerate(monitor.tracks.values()):
        arrays = {name: tensors[f"{place}.{name}"].numpy() for name in _tensors(track)}
        track.ranks, track.window = RunningRanks(arrays["seen"]), arrays["window"]
        bets, alarm = track.martingale, content["alarms"][place]
        bets.bets, bets.best, bets.since = (arrays[name] for name in ("bets", "best", "since"))
        bets.n, bets.alarm = content["n"], alarm and Alarm(**alarm)
    return monitor


def _reading(content: dict[str, Any]) -> WindowReport:
    alarms = tuple(Alarm(**alarm) for alarm in content["alarms"])
    moves = {name: _move(move) for name, move in content["moves"].items()}
    return WindowReport(**{**content, "moves": moves, "alarms": alarms})


def _move(content: dict[str, Any]) -> ShiftTest:
    return ShiftTest(
        **{**content, **{when: Quantiles(**content[when]) for when in ("now", "then")}}
    )
