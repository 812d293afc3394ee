"""Both towers of a CLIP of open_clip, and the example; run by ``test_vision``."""

from __future__ import annotations

from typing import Any

import open_clip
import pytest
import torch

from benchmarks.examples.models import open_clip_towers
from laplace_metric import LaplaceEmbedder
from laplace_metric.errors import HeadError
from laplace_metric.models import Call
from tests.models.unchanged import fitted, unit

NAME = "ViT-S-32-alt"
TEXTS = ["a cat", "a dog", "the cat that sat", "dogs"]
Y = torch.tensor([0, 1, 0, 1])


@pytest.fixture(scope="module")
def clip() -> Any:
    torch.manual_seed(0)
    return open_clip.create_model(NAME)


@pytest.fixture(scope="module")
def inputs() -> dict[str, torch.Tensor]:
    images = torch.rand(4, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    return {"encode_image": images, "encode_text": open_clip.get_tokenizer(NAME)(TEXTS)}


@pytest.mark.parametrize("method", ["encode_image", "encode_text"])
def test_towers(clip, inputs, method):
    x = inputs[method]
    expected = getattr(clip.eval(), method)(x, normalize=True).detach()
    tower = Call(clip, method, normalize=True)
    embedder = fitted(LaplaceEmbedder(tower, head="append"), x, Y)
    torch.testing.assert_close(embedder(x).mean, expected)
    raw = LaplaceEmbedder(Call(clip, method), head="append").fit([(x, Y)], progress=False)
    torch.testing.assert_close(raw(x).mean, unit(getattr(clip.eval(), method)(x)))


def test_a_projection_that_is_no_layer(clip, inputs):
    with pytest.raises(HeadError, match="c_proj.*head='append'"):
        LaplaceEmbedder(Call(clip, "encode_image")).fit([(inputs["encode_image"], Y)])


def test_both_towers_at_once(clip, inputs):
    both = tuple(inputs.values())
    with pytest.raises(HeadError, match=r"a tuple.*\[4, 256\], \[4, 256\].*Call"):
        LaplaceEmbedder(clip).fit([(both, Y)], progress=False)


def test_the_example_says_that_its_weights_are_random():
    found = list(open_clip_towers.run(2))
    assert len(found) == 2
    assert all("weights are random" in part and "[2, 256], [2, 256]" in part for part in found)
