"""What every baseline must do; a test class inherits this and gives ``make(model)``."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from baselines.base import Baseline
from laplace_metric.errors import EmptyLoaderError, FileFormatError, LabelError, NotFittedError


class MethodContract:
    """Inherit and implement ``make``: a fresh method, quick to fit."""

    needs_two_classes = True

    def make(self, model: nn.Module) -> Baseline:
        raise NotImplementedError

    def fitted(self, model, loader) -> Baseline:
        return self.make(model).fit(loader, progress=False)

    def test_embedding(self, model, loader, data):
        x, y = data
        method = self.fitted(model, loader)
        embedding = method(x)
        assert embedding.mean.shape == (60, 4)
        assert embedding.uncertainty.shape == (60,)
        assert bool(embedding.uncertainty.isfinite().all())
        assert not embedding.mean.requires_grad
        assert not embedding.uncertainty.requires_grad
        if method.spherical:
            torch.testing.assert_close(embedding.mean.norm(dim=1), torch.ones(60))
        draws = method.sample(x[:7], 3, torch.Generator().manual_seed(0))
        assert draws.shape == (3, 7, 4)
        whole, labels = method.embed(loader, progress=False)
        assert torch.equal(labels, y)
        assert len(whole) == 60

    def test_leaves_everything_alone(self, model, loader, data):
        model.train()
        before = copy.deepcopy(model.state_dict())
        state = torch.get_rng_state()
        method = self.fitted(model, loader)
        generator = torch.Generator().manual_seed(0)
        method(data[0])
        method.sample(data[0], 2, generator)
        assert torch.equal(torch.get_rng_state(), state)
        assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
        assert all(m.training for m in model.modules())
        assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())
        assert all(p.requires_grad and p.grad is None for p in model.parameters())

    def test_reproducible(self, model, loader, data):
        first, second = self.fitted(model, loader), self.fitted(model, loader)
        torch.testing.assert_close(first(data[0]).uncertainty, second(data[0]).uncertainty)
        draws = [m.sample(data[0], 2, torch.Generator().manual_seed(3)) for m in (first, second)]
        torch.testing.assert_close(*draws)

    def test_save_and_load(self, model, loader, data, tmp_path):
        method = self.fitted(model, loader)
        method.save(tmp_path / "saved")
        again = type(method).load(tmp_path / "saved", model)
        for name in ("mean", "uncertainty"):
            torch.testing.assert_close(
                getattr(again(data[0]), name), getattr(method(data[0]), name), rtol=0, atol=0
            )
        other = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
        with pytest.raises(FileFormatError):
            type(method).load(tmp_path / "saved", other)
        with pytest.raises(FileFormatError):
            type(method).load(tmp_path / "nothing", model)

    def test_errors(self, model, data):
        x, y = data
        method = self.make(model)
        with pytest.raises(NotFittedError, match="fit"):
            method.save("nowhere")
        with pytest.raises(EmptyLoaderError):
            method.fit([], progress=False)
        with pytest.raises(LabelError):
            method.fit([x], progress=False)
        if self.needs_two_classes:
            with pytest.raises(LabelError, match="single class"):
                method.fit([(x, torch.zeros_like(y))], progress=False)
        assert method.model is model

    def test_any_labels(self, model, data):
        """Class numbers need not be 0..C-1."""
        x, y = data
        method = self.make(model).fit([(x, 7 * y - 3)], progress=False)
        assert bool(method(x).uncertainty.isfinite().all())
