from __future__ import annotations

from collections import namedtuple
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from laplace_metric import LaplaceEmbedder
from laplace_metric.errors import HeadError, InputError, UnknownNameError
from laplace_metric.models import Pooled

G = torch.Generator().manual_seed(0)
TOKENS = torch.randn(3, 4, 5, generator=G)
MASKS = {
    "right": torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]]),
    "left": torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1], [0, 0, 0, 1]]),
}


class Tokens(nn.Module):
    """Returns what it was given, in one of the ways in which libraries return things."""

    def __init__(self, kind=dict) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, tokens, attention_mask=None):
        named = {"last_hidden_state": tokens, "pooler_output": tokens[:, 0] * 2}
        return tuple(named.values()) if self.kind is tuple else self.kind(**named)


def by_hand(pooling, mask):
    rows = []
    for vectors, keep in zip(TOKENS, mask, strict=True):
        real = [v for v, k in zip(vectors, keep.tolist(), strict=True) if k]
        rows.append({"mean": sum(real) / len(real), "last": real[-1], "cls": vectors[0]}[pooling])
    return torch.stack(rows)


@pytest.mark.parametrize("side", MASKS)
@pytest.mark.parametrize("pooling", ["mean", "last", "cls"])
def test_padding_does_not_count(pooling, side):
    mask = MASKS[side]
    found = Pooled(Tokens(), pooling)(tokens=TOKENS, attention_mask=mask.bool())
    torch.testing.assert_close(found, by_hand(pooling, mask))
    placed = Pooled(Tokens(), pooling)(TOKENS, mask)  # by its place among the arguments
    assert torch.equal(placed, found)


def test_padding_may_hold_anything():
    mask = MASKS["right"]
    dirty = TOKENS.masked_fill(mask[..., None] == 0, torch.nan)
    found = Pooled(Tokens())(dirty, mask)
    torch.testing.assert_close(found, by_hand("mean", mask))


def test_maps_have_their_mean():
    maps = torch.randn(3, 5, 2, 4, generator=G)
    found = Pooled(Tokens(), "mean")(maps)
    torch.testing.assert_close(found, maps.flatten(2).mean(2))
    with pytest.raises(InputError, match="vectors of tokens"):
        Pooled(Tokens(), "cls")(maps)


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        (dict, None),
        (SimpleNamespace, None),
        (namedtuple("Output", ["last_hidden_state", "pooler_output"]), 1),
        (tuple, 1),
    ],
)
def test_a_field_that_is_one_vector_already(kind, field):
    found = Pooled(Tokens(kind), pooling=None, field=field)(TOKENS)
    assert torch.equal(found, TOKENS[:, 0] * 2)


def test_bad_arguments():
    with pytest.raises(UnknownNameError, match="pooling='max'.*'mean', 'cls', 'last'"):
        Pooled(Tokens(), "max")
    shapes = r"last_hidden_state \[3, 4, 5\], pooler_output \[3, 5\]"
    with pytest.raises(InputError, match=f"field='logits'.*dict.*{shapes}"):
        Pooled(Tokens(), field="logits")(TOKENS)
    with pytest.raises(InputError, match=r"'pooler_output'.*\[3, 5\].*pooling=None"):
        Pooled(Tokens(), "mean", "pooler_output")(TOKENS)
    with pytest.raises(InputError, match=r"attention_mask.*\[3, 3\]"):
        Pooled(Tokens())(TOKENS, MASKS["left"][:, :3])
    with pytest.raises(InputError, match="no tensor.*returned a dict"):
        Pooled(Nothing(), None)(TOKENS)


class Nothing(nn.Module):
    def forward(self, tokens):
        return {"last_hidden_state": tokens, "pooler_output": None}


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Tokens(tuple), r"a tuple \(\[3, 4, 5\], \[3, 5\]\).*Pooled.*Call"),
        (nn.Identity(), r"a tensor \[3, 4, 5\].*Pooled\(model, 'mean'\)"),
        (Nothing(), r"pooler_output None"),
    ],
)
def test_the_error_of_a_bare_model_names_the_adapter(model, words):
    with pytest.raises(HeadError, match=words):
        LaplaceEmbedder(model, head="append").fit(
            [(TOKENS, torch.tensor([0, 1, 1]))], progress=False
        )


@pytest.mark.parametrize("wrap", [nn.DataParallel, torch.compile])
def test_a_mask_by_its_place_is_found_behind_a_wrapper(wrap):
    """No call is made: what a wrapper's own signature hides is the place of the mask."""
    model = Pooled(wrap(Tokens()), "mean")
    found = model._mask((TOKENS, MASKS["left"]), {})
    assert found is MASKS["left"]
