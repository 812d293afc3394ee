"""Compiled and data parallel models, and where inputs go."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from laplace_metric import LaplaceEmbedder
from laplace_metric.errors import InputError
from laplace_metric.models._modules import unwrapped


def compiled(model: nn.Module) -> nn.Module:
    return torch.compile(model, backend="eager")


@pytest.mark.parametrize(
    "wrap", [compiled, nn.DataParallel, lambda m: nn.DataParallel(compiled(m))]
)
def test_wrapped_is_the_same_as_bare(model, loader, data, wrap, tmp_path):
    wrapped = wrap(model)
    found = LaplaceEmbedder(wrapped).fit(loader, progress=False)
    assert found.model is model
    assert found.head_.name == "2"
    found.save(tmp_path / "saved")
    for other in (model, wrapped):
        again = LaplaceEmbedder.load(tmp_path / "saved", other)
        assert torch.equal(again(data[0]).variance, found(data[0]).variance)
    torch.testing.assert_close(wrapped(data[0]), model(data[0]))  # it still runs


def test_a_model_that_was_compiled_and_run_before(model, loader, data):
    fast = compiled(model)
    fast(data[0])
    embedder = LaplaceEmbedder(fast).fit(loader, progress=False)
    expected = LaplaceEmbedder(model).fit(loader, progress=False)
    assert torch.equal(embedder(data[0]).variance, expected(data[0]).variance)


def test_distributed_data_parallel(model):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert unwrapped(DistributedDataParallel(model)) is model
    finally:
        dist.destroy_process_group()


def test_a_module_that_has_a_module_is_no_wrapper():
    class Has(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(2, 2)

    model = Has()
    assert unwrapped(model) is model
    for wrong in ("resnet", None):
        with pytest.raises(InputError, match="pass a torch.nn.Module"):
            unwrapped(wrong)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_model_on_the_gpu_takes_inputs_from_the_cpu(model, loader, data):
    expected = LaplaceEmbedder(model).fit(loader, progress=False)(data[0]).variance
    embedder = LaplaceEmbedder(model.cuda()).fit(loader, progress=False)
    found = embedder(data[0]).variance
    assert found.device.type == "cuda"
    torch.testing.assert_close(found.cpu(), expected, atol=0, rtol=1e-3)
