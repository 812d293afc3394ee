"""Many threads, one embedder: the answers are those of one thread, and the model is as it was."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from laplace_metric.models import evaluation_mode
from tests.thread_table import KINDS, hammered, problem


def state_of(model: nn.Module) -> list[tuple[bool, list[int], list[int]]]:
    return [
        (module.training, [*module._forward_hooks], [*module._forward_pre_hooks])
        for module in model.modules()
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_calls_from_eight_threads_are_right_and_leave_the_model_alone(kind):
    embedder, inputs = problem(kind)
    handle = embedder.model.register_forward_hook(lambda *_: None)
    before = state_of(embedder.model)
    outcome = hammered(lambda x: embedder(x).variance, inputs, 8, 60)
    assert (outcome.calls, outcome.errors, outcome.wrong) == (480, 0, 0), outcome.first_error
    assert state_of(embedder.model) == before
    handle.remove()


@pytest.mark.parametrize("structure", ["diag", "kron"])
def test_searches_from_eight_threads_are_right(structure):
    KINDS[structure] = (None, {"structure": structure})
    try:
        embedder, inputs = problem(structure)
    finally:
        del KINDS[structure]
    index = embedder.index(torch.cat(inputs), progress=False)

    def answer(x):
        result = index.search(x, k=5)
        return torch.cat([result.uncertainty[:, None], result.distance_sd], 1)

    outcome = hammered(answer, inputs, 8, 40)
    assert (outcome.calls, outcome.errors, outcome.wrong) == (320, 0, 0), outcome.first_error


def test_two_embedders_of_one_backbone_share_its_modes():
    embedder, inputs = problem("train mode")
    inside, backbone = threading.Event(), embedder.model.body
    expected = embedder(inputs[0]).mean

    def hold():
        with evaluation_mode(backbone):
            inside.set()
            leave.wait(10)

    leave = threading.Event()
    other = threading.Thread(target=hold)
    other.start()
    inside.wait(10)
    assert torch.equal(embedder(inputs[0]).mean, expected)
    assert not backbone.training, "the other call still needs eval mode"
    assert embedder.model.fc.training
    leave.set()
    other.join()
    assert all(module.training for module in embedder.model.modules())


def test_modes_are_put_back_in_any_order_of_leaving():
    model = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(3)).train()
    model[1].eval()  # a user's frozen batch norm
    first, second = evaluation_mode(model), evaluation_mode(model)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not model.training
    second.__exit__(None, None, None)
    assert [module.training for module in model.modules()] == [True, True, False]
    with pytest.raises(RuntimeError, match="as is"), evaluation_mode(model):
        raise RuntimeError("as is")
    assert [module.training for module in model.modules()] == [True, True, False]
