"""A network that several pieces need is trained by the first of them."""

import threading
import time

import pytest
import torch
from torch import nn

from benchmarks import records, trained_once

MODULE = "benchmarks.posterior.problems"


def asked(cache, trained, name="one, seed 0", seconds=0.0):
    """A new network, and whether it was trained for this question."""
    network = nn.Linear(3, 2)

    def train():
        time.sleep(seconds)
        trained.append(name)
        with torch.no_grad():
            network.weight.fill_(len(trained))

    return network, trained_once.trained_once(network, train, name, MODULE, cache)


def test_the_second_piece_reads_what_the_first_has_trained(tmp_path):
    trained = []
    (first, new), (second, again) = (asked(tmp_path, trained) for _ in range(2))
    assert (new, again, trained) == (True, False, ["one, seed 0"])
    assert torch.equal(first.weight, second.weight)
    assert torch.equal(first.bias, second.bias)
    assert second.weight.detach()[0, 0] == 1


def test_another_network_and_other_code_are_trained(tmp_path, monkeypatch):
    trained = []
    asked(tmp_path, trained)
    assert asked(tmp_path, trained, "one, seed 1")[1]
    monkeypatch.setattr(trained_once, "training", lambda module: "other")
    assert asked(tmp_path, trained)[1]


def test_networks_of_other_kernels_and_packages_are_others(monkeypatch):
    """A record says by which kernels it was made: its networks are of the same."""
    monkeypatch.delenv(records.FIXED_VARIABLE, raising=False)
    own = records.networks_folder()
    monkeypatch.setenv(records.FIXED_VARIABLE, "1")
    fixed = records.networks_folder()
    monkeypatch.setattr(records, "_version", lambda name: "9.9")
    assert len({own, fixed, records.networks_folder()}) == 3


def test_pieces_that_ask_at_once_train_once(tmp_path):
    trained, found = [], []
    ask = lambda: found.append(asked(tmp_path, trained, seconds=0.3)[1])  # noqa: E731
    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [False, False, True]
    assert len(trained) == 1


def test_a_training_that_breaks_leaves_nothing(tmp_path):
    def broken():
        raise RuntimeError("no data")

    with pytest.raises(RuntimeError, match="no data"):
        trained_once.trained_once(nn.Linear(3, 2), broken, "one, seed 0", MODULE, tmp_path)
    assert asked(tmp_path, [])[1]
