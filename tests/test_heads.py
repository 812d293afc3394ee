from __future__ import annotations

import pytest
import torch
from torch import nn

from laplace_metric import LaplaceEmbedder
from laplace_metric.errors import DtypeError, HeadError, InputError, NonFiniteError
from laplace_metric.heads._capture import capture
from laplace_metric.heads._locate import find_head
from laplace_metric.inputs import read_batch


class FunctionalNormalize(nn.Module):
    """torchvision-style: a backbone, ``.fc``, and a normalisation that is no module."""

    def __init__(self) -> None:
        super().__init__()
        self.layer1 = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Dropout(0.5))
        self.fc = nn.Linear(7, 3)

    def forward(self, x):
        return nn.functional.normalize(self.fc(self.layer1(x)), dim=-1)


class TwoInputs(nn.Module):
    """timm-style ``.head``; called with a pair or with keywords."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 7), nn.Linear(5, 7)
        self.head = nn.Linear(7, 3, bias=False)

    def forward(self, a, b):
        return self.head(torch.relu(self.first(a) + self.second(b)))


X = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))


class Normalize(nn.Module):
    def forward(self, x):
        return x / x.norm(dim=-1, keepdim=True)


class Reordered(nn.Module):
    """The last linear layer that runs is not the last one that is registered."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(7, 3)
        self.inner = nn.Linear(5, 7)
        self.unused = nn.Linear(5, 2)

    def forward(self, x):
        return self.out(self.inner(x))


class Text(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 3)

    def forward(self, texts):
        return self.fc(torch.tensor([[len(t), t.count("a")] for t in texts]).float())


CHAIN = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3), nn.Identity())
HEADS = {
    "identity after it": (CHAIN, X, None, "2", False),
    "by name": (CHAIN, X, "2", "2", False),
    "by module": (CHAIN, X, CHAIN[2], "2", False),
    "functional normalize": (FunctionalNormalize(), X, None, "fc", True),
    "float32 normalize": (nn.Sequential(nn.Linear(5, 64), Normalize()), 1e-3 * X, None, "0", True),
    "the last that runs": (Reordered(), X, None, "out", False),
    "of itself": (nn.Linear(5, 2), X, None, "", False),
    "strings": (Text(), ["a", "bc"], None, "fc", False),
    "tuple": (TwoInputs(), (X, 2 * X), None, "head", False),
    "list": (TwoInputs(), [X, 2 * X], None, "head", False),
    "keywords": (TwoInputs(), {"a": X, "b": 2 * X}, None, "head", False),
}


@pytest.mark.parametrize("case", HEADS)
def test_the_head_is_found_and_what_follows_it_is_seen(case):
    model, inputs, head, name, normalized = HEADS[case]
    inputs = read_batch("inputs", inputs)
    found = find_head(model.eval(), inputs, head)
    assert (found.name, found.normalized) == (name, normalized)
    assert found.module is dict(model.named_modules())[name]
    seen = capture(model, found, inputs)
    torch.testing.assert_close(seen.raw, found.module(seen.features))
    f = nn.functional.normalize(seen.raw, dim=-1) if normalized else seen.raw
    torch.testing.assert_close(seen.output, f)
    if isinstance(inputs, (tuple, dict)):
        torch.testing.assert_close(seen.output, model(X, 2 * X))


def test_half_precision_heads_are_still_told_apart():
    class Scaled(nn.Module):
        def __init__(self, scale: float) -> None:
            super().__init__()
            self.fc, self.scale = nn.Linear(5, 64), scale

        def forward(self, x):
            return self.scale * nn.functional.normalize(self.fc(x), dim=-1)

    assert find_head(Scaled(1.0).bfloat16(), X.bfloat16()).normalized
    with pytest.raises(HeadError, match="neither"):
        find_head(Scaled(1.2).bfloat16(), X.bfloat16())


def test_other_failures_of_the_model_are_not_dressed_up():
    class Fails(nn.Linear):
        def forward(self, x):
            raise RuntimeError("my own")

    with pytest.raises(RuntimeError, match="^my own$"):
        find_head(Fails(5, 2), torch.ones(2, 5))


def test_what_follows_in_place_does_not_spoil_the_raw_embedding():
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(5, 3)

        def forward(self, x):
            z = self.fc(x)
            return z.div_(z.norm(dim=-1, keepdim=True))

    model = InPlace()
    head = find_head(model, X)
    assert head.normalized
    torch.testing.assert_close(capture(model, head, X).raw, model.fc(X))


class Follows(nn.Module):
    """Does something after its head, which inputs near 0 do not show."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kind, self.first, self.fc = kind, nn.Linear(5, 7), nn.Linear(7, 3)
        nn.init.constant_(self.fc.bias, 0.1)

    def forward(self, x):
        z = self.fc(self.first(x))
        if self.kind == "clamp":
            return z.clamp(-1, 1)
        if self.kind == "longest":
            return z / z.norm(dim=-1, keepdim=True).clamp_min(1)
        if self.kind == "clamped direction":
            return nn.functional.normalize(z, dim=-1) + (z - 1).clamp_min(0)
        return z if self.kind == "z" else nn.functional.normalize(z, dim=-1)


SMALL, LARGE = 0.05 * X, torch.cat([0.05 * X, 40 * X])


@pytest.mark.filterwarnings("ignore::laplace_metric.errors.LaplaceMetricWarning")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["clamp", "longest", "clamped direction"])
def test_what_follows_the_head_in_a_later_batch_alone_is_seen(kind, dtype):
    model, small, large = Follows(kind).to(dtype), SMALL.to(dtype), LARGE.to(dtype)
    y = torch.arange(6) % 2
    embedder = LaplaceEmbedder(model).fit([(small, y)])
    assert embedder.spherical or kind != "clamped direction"
    for fails in (
        lambda: embedder(large),
        lambda: embedder.uncertainties([small, large]),
        lambda: LaplaceEmbedder(model).fit([(small, y), (large[6:], y)]),
        lambda: embedder.index(torch.cat([small, large]), torch.arange(18) % 2),
    ):
        with pytest.raises(HeadError, match="first batch.*later one.*head='append'"):
            fails()
    embedder(small)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["z", "z / |z|"])
def test_a_later_batch_of_any_lengths_raises_no_alarm(kind, dtype):
    model = Follows(kind).to(dtype)
    head, tiny = find_head(model, X.to(dtype)), torch.finfo(dtype).tiny
    assert head.normalized == (kind != "z")
    g = torch.Generator().manual_seed(1)
    for scale in (1e-4, 1e-2, 1.0, 100.0, 3e3):
        x = scale * torch.randn(500, 5, generator=g)
        capture(model, head, x.to(dtype))
        with torch.autocast("cpu", torch.bfloat16):
            capture(model, head, x.to(dtype))
    nn.init.zeros_(model.fc.bias)
    nn.init.zeros_(model.first.bias)
    x = torch.stack([torch.zeros(5), torch.full((5,), tiny), X[0]]).to(dtype)
    assert not capture(model, head, x).raw[0].any()
    x[1] = torch.nan
    assert capture(model, head, x).raw[1].isnan().all()
    x[1] = torch.inf
    capture(model, head, x)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(5, 3)

    def forward(self, x):
        return 20 * nn.functional.normalize(self.fc(x), dim=-1)


class Twice(nn.Linear):
    def forward(self, x):
        return super().forward(torch.cat([x, x]))


class Again(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(5, 5)

    def forward(self, x):
        return self.fc(self.fc(x))


class Named(nn.Module):
    def forward(self, x):
        return {"embedding": x}


def tailed(tail: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 3), tail)


NAN = torch.full((2, 5), torch.nan)
NOT_A_HEAD = {
    "relu": (tailed(nn.ReLU()), X, None, HeadError, "looks like relu"),
    "tanh": (tailed(nn.Tanh()), X, None, HeadError, "neither.*relative differences"),
    "scale": (Scaled(), X, None, HeadError, r"20 times z / \|z\|"),
    "no linear": (nn.Conv1d(1, 1, 3), X[:, None], None, HeadError, "no nn.Linear"),
    "name": (
        tailed(nn.ReLU()),
        X,
        "3",
        HeadError,
        r"'3' is not a layer.*\['0', '1'\]",
    ),
    "module": (tailed(nn.ReLU()), X, nn.Linear(5, 3), HeadError, "not a layer of the model"),
    "inner": (nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3)), X, "0", HeadError, "must map"),
    "rows": (Twice(5, 2), X, "", HeadError, "must map"),
    "twice": (Again(), X, None, HeadError, "2 times"),
    "tokens": (nn.Linear(5, 2), X.reshape(2, 3, 5), None, HeadError, r"\[2, 3, 2\].*Pooled"),
    "a dict": (tailed(Named()), X, None, HeadError, "returned a dict"),
    "a str": ("resnet", X, None, InputError, "model=.*is a name"),
    "size": (nn.Linear(5, 2), X[:, :3], None, InputError, r"cannot take inputs \[6, 3\].*shapes"),
    "size of what is looked up": (
        nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(8, 3)),
        torch.zeros(6, 3, dtype=torch.long),  # whole numbers are no reason to cast
        None,
        InputError,
        r"cannot take inputs \[6, 3\].*shapes",
    ),
    "one number a row": (
        nn.Sequential(nn.Linear(5, 1), nn.Flatten(0)),
        X,
        None,
        HeadError,
        r"returned a tensor \[6\], not a tensor \[B, Z\]",
    ),
    "dtype": (nn.Linear(5, 2).double(), X, None, DtypeError, r"torch.float32.*torch.float64"),
    "nan": (nn.Linear(5, 2), NAN, None, NonFiniteError, "first batch"),
}


@pytest.mark.parametrize("case", NOT_A_HEAD)
def test_what_has_no_head_is_named(case):
    model, inputs, head, error, message = NOT_A_HEAD[case]
    with pytest.raises(error, match=message):
        find_head(model, inputs, head)


@pytest.mark.parametrize(
    ("head", "given"),
    [
        (2, "head=2"),
        (X, r"head is a tensor \["),
        (X.numpy(), "head is a ndarray"),
        ([(X, X)], "head is a list"),
    ],
)
def test_what_is_given_as_a_head_and_is_none_is_named_where_it_is_given(head, given):
    said = rf"^{given}.*: pass the name of a layer.*fit\(inputs, labels\)"
    with pytest.raises(HeadError, match=said):
        LaplaceEmbedder(tailed(nn.ReLU()), head)
    with pytest.raises(HeadError, match=said):
        find_head(tailed(nn.ReLU()), X, head)


def test_head_that_did_not_run():
    model = TwoInputs()
    model.extra = nn.Linear(3, 3)
    with pytest.raises(HeadError, match="extra.*ran"):
        find_head(model, (X, X), "extra")


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_left_as_it_was(fails):
    model = FunctionalNormalize().train()
    model.layer1[1].eval()  # a user's frozen batch norm
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    if fails:
        with pytest.raises(InputError, match="cannot take inputs"):
            find_head(model, torch.ones(2, 99))
    else:
        capture(model, find_head(model, X), X)
    assert [module.training for module in model.modules()] == modes
    assert not any(module._forward_hooks for module in model.modules())
    assert torch.is_grad_enabled()
    assert all(parameter.requires_grad for parameter in model.parameters())
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


class Between(nn.Module):
    """Runs the modules of its head itself, and scales what passes between them."""

    def __init__(self, scale):
        super().__init__()
        self.head, self.scale = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3)), scale

    def forward(self, x):
        return self.head[1](self.scale * self.head[0](x))


def test_one_per_cent_between_the_modules_of_a_head_is_noticed():
    x = torch.randn(9, 4, generator=torch.Generator().manual_seed(0))
    for scale in (1.0, 1 + 1e-6):  # rounding of another device
        model = Between(scale)
        assert find_head(model, x, model.head[:]).n_outputs == 3
    model = Between(1.01)
    with pytest.raises(HeadError, match="something else.*its modules"):
        find_head(model, x, model.head[:])
