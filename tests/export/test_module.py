"""The module says what the embedder says, and is what ``nn.Module`` promises."""

from __future__ import annotations

import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import nn

from laplace_metric import LaplaceEmbedder
from laplace_metric.errors import HeadError, InputError, NonFiniteError
from laplace_metric.export._head_variance import value_and_slope
from laplace_metric.familiarity._near_far import NOTHING_ENTERS
from tests.export.problems import BENT, CASES, MODELS, SMOOTH, D, fitted, inputs

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.filterwarnings("ignore::laplace_metric.errors.NegativeCurvatureWarning")
EXACT = {"rtol": 1e-10, "atol": 1e-12}
QUERIES = inputs(33, seed=2)[0]


def of(embedder: LaplaceEmbedder, x: torch.Tensor = QUERIES) -> list[torch.Tensor]:
    seen = embedder(x)
    return [seen.mean, seen.epistemic, seen.uncertainty]


@pytest.mark.parametrize(("name", "structure", "distance"), CASES)
def test_as_the_embedder(name, structure, distance):
    embedder = fitted(name, structure, distance)
    for found, expected in zip(embedder.as_module()(QUERIES), of(embedder), strict=True):
        torch.testing.assert_close(found, expected, **EXACT)


@pytest.mark.parametrize("group", [*([m] for m in (*SMOOTH, *BENT)), [nn.Tanh(), nn.Sigmoid()]])
def test_slopes_are_those_of_autograd(group):
    s = torch.linspace(-4.02, 3.99, 101, dtype=torch.float64)[None].requires_grad_()
    phi = nn.Sequential(*group).eval()
    value, slope = value_and_slope(list(phi), s)
    (expected,) = torch.autograd.grad(phi(s).sum(), s)
    torch.testing.assert_close(slope.detach(), expected, **EXACT)
    torch.testing.assert_close(value, phi(s))


def test_what_epistemic_is():
    x, y = inputs()
    known = fitted("linear").as_module()
    assert known.compares_with == "classes and points"
    alone = LaplaceEmbedder(MODELS["linear"]()[0].double(), pairs="batch").fit([(x, y)])
    numbers = alone.as_module()(QUERIES)
    assert alone.as_module().compares_with == "uncertainty"
    assert torch.equal(numbers.epistemic, numbers.uncertainty)


def test_rows_of_zeros_and_nan_have_a_number_each():
    embedder = LaplaceEmbedder(nn.Linear(D, 3, bias=False).double()).fit([inputs()])
    x = QUERIES[:3].clone()
    x[0], x[1, 0] = 0, torch.nan
    _, epistemic, _ = embedder.as_module()(x)
    assert epistemic[0] == NOTHING_ENTERS
    assert epistemic[1].isnan()
    torch.testing.assert_close(epistemic[2:], embedder(x[2:]).epistemic, **EXACT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("length", [1e-38, 1e-22, 1e-13, 1e-11, 1e15, 1e20, 1e30])
def test_no_row_is_certain_because_of_its_length(length, dtype):
    """What Python refuses is NaN; all else has the number that it has in Python."""
    embedder = LaplaceEmbedder(nn.Linear(D, 3, bias=False).to(dtype), distance="arccos")
    embedder.fit([(inputs()[0].to(dtype), inputs()[1])])
    x = QUERIES[:3].clone().to(dtype)
    with torch.no_grad():
        x[1] *= length / embedder.model(x)[1].norm().item()
    found = embedder.as_module()(x)
    assert found.uncertainty[[0, 2]].isfinite().all()
    try:
        mean, uncertainty = embedder(x).mean, embedder(x).uncertainty
    except (InputError, NonFiniteError):
        assert found.uncertainty[1].isnan()
        assert found.mean[1].isnan().all() or found.mean[1].norm().item() == pytest.approx(1)
    else:
        torch.testing.assert_close(found.mean, mean)
        torch.testing.assert_close(found.uncertainty, uncertainty, rtol=1e-3, atol=0)


def test_other_backends_are_read_as_linear_layers():
    expected, found = (fitted("chain", "diag", backend=b) for b in ("auto", "torch.func"))
    for a, b in zip(found.as_module()(QUERIES), of(expected), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-12)


def test_a_head_that_no_graph_knows():
    model = nn.Sequential(nn.Linear(D, 4), nn.BatchNorm1d(4)).double()
    embedder = LaplaceEmbedder(model, head=model[:], structure="diag").fit([inputs()])
    with pytest.raises(HeadError, match="Sequential.*graph.*head='append'"):
        embedder.as_module()


def test_the_model_is_left_alone():
    embedder = fitted("chain")
    before = deepcopy(embedder.model.state_dict())
    module = embedder.as_module()
    module.to(torch.float32)
    for parameter in module.parameters():
        parameter.data.zero_()
    assert [type(m) for m in embedder.model] == [type(m) for m in MODELS["chain"]()[0]]
    assert all(torch.equal(before[k], v) for k, v in embedder.model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in embedder.model.modules())
    embedder(QUERIES)  # and its buffers are copies, too


def test_state_dict_moves_the_posterior_too():
    one, other = (fitted("linear", prior_precision=p).as_module() for p in (1.0, 30.0))
    assert not torch.allclose(one(QUERIES).uncertainty, other(QUERIES).uncertainty)
    other.load_state_dict(one.state_dict())
    for a, b in zip(one(QUERIES), other(QUERIES), strict=True):
        assert torch.equal(a, b)


def test_it_moves_and_stays_in_evaluation_mode():
    module = fitted("linear").as_module().train()
    assert not any(m.training for m in module.modules())
    assert not any(p.requires_grad for p in module.parameters())
    assert {t.device.type for t in module.to("meta").state_dict().values()} == {"meta"}


def test_a_call_that_fails_leaves_nothing_behind():
    module = fitted("normalised").as_module()
    expected = module(QUERIES)
    with pytest.raises(RuntimeError):
        module(QUERIES[:, :3])
    module.body.model[3].forward = lambda z: z / 0 + torch.ones(2, 2, 2, 2)[0, 0, 0, 5]
    with pytest.raises(IndexError):
        module(QUERIES)
    del module.body.model[3].forward
    for a, b in zip(module(QUERIES), expected, strict=True):
        assert torch.equal(a, b)


def test_compiled():
    command = [sys.executable, "-m", "tests.export.compiled"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.split() == ["linear", "chain", "normalised", "append"], done.stderr


def test_autocast_and_inference_mode():
    embedder = fitted("linear", dtype=torch.float32)
    module, x = embedder.as_module(), QUERIES.float()
    with torch.autocast("cpu", torch.bfloat16):
        expected, found = of(embedder, x), module(x)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    with torch.inference_mode():
        found = module(x)
    for a, b in zip(found, of(embedder, x), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_inputs_by_place_and_by_name():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(D, 3).double()

        def forward(self, a, b):
            return self.head(a - b)

    x, y = inputs()
    embedder = LaplaceEmbedder(Two()).fit([({"a": x, "b": 0 * x}, y)], progress=False)
    module, other = embedder.as_module(), QUERIES.roll(1, 0)
    expected = of(embedder, {"a": QUERIES, "b": other})
    for found in (module(QUERIES, other), module(a=QUERIES, b=other), module((QUERIES, other))):
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, **EXACT)


@pytest.mark.parametrize("name", ["to", "state_dict"])
def test_an_embedder_is_no_module_and_says_so(name):
    embedder = fitted("linear")
    assert not hasattr(embedder, name)
    with pytest.raises(AttributeError, match=rf"no attribute '{name}': .*as_module\(\)\.{name}"):
        getattr(embedder, name)
