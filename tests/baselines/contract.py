"""What every baseline must do; a test class inherits this and gives ``make(model)``."""

from __future__ import annotations

import contextlib
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
        means, labels = method.embed(loader, progress=False)
        assert torch.equal(labels, y)
        assert len(means) == 60

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
        loaded = type(method).load(tmp_path / "saved", model)
        for name in ("mean", "uncertainty"):
            torch.testing.assert_close(
                getattr(loaded(data[0]), name), getattr(method(data[0]), name), rtol=0, atol=0
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

    def test_float64(self, model, data):
        x, y = data[0].double(), data[1]
        method = self.fitted(model.double(), [(x, y)])
        assert method(x).mean.dtype == torch.float64
        assert method(x).uncertainty.dtype == torch.float64

    def test_a_head_by_name_or_module(self, model, loader, data):
        name, layer = [pair for pair in model.named_modules() if isinstance(pair[1], nn.Linear)][-1]
        for head in (name, layer, None):
            method = self.make(model)
            method.head = head
            method.fit(loader, progress=False)
            assert method.fitted_.head.name == name

    def test_an_interrupted_fit_changes_nothing(self, model, data):
        x, y = data

        class Broken:
            passes = 0

            def __iter__(self):
                yield x, y
                self.passes += 1
                if self.passes > 1:
                    raise KeyboardInterrupt

        method = self.fitted(model, [(x, y)])
        before = method(x).uncertainty
        state = torch.get_rng_state()
        with contextlib.suppress(KeyboardInterrupt):
            method.fit(Broken(), progress=False)
            return  # one pass was enough
        torch.testing.assert_close(method(x).uncertainty, before, rtol=0, atol=0)
        assert torch.equal(torch.get_rng_state(), state)
