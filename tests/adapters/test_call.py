from __future__ import annotations

import pytest
import torch
from torch import nn

from laplace_metric import LaplaceEmbedder
from laplace_metric.errors import InputError
from laplace_metric.models import Call


class Towers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = nn.Linear(4, 3), nn.Linear(5, 3)

    def encode_image(self, image, normalize=False):
        z = self.image(image)
        return nn.functional.normalize(z, dim=-1) if normalize else z

    def encode_text(self, *, tokens, offset=0.0):
        return self.text(tokens) + offset


X, Y = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 2


def test_a_method_with_its_options():
    towers = Towers()
    z = towers.image(X)
    torch.testing.assert_close(Call(towers, "encode_image")(X), z)
    unit = z / z.norm(dim=1, keepdim=True)
    torch.testing.assert_close(Call(towers, "encode_image", normalize=True)(X), unit)
    tokens = torch.randn(2, 5)
    moved = Call(towers, "encode_text", offset=2.0)(tokens=tokens)
    torch.testing.assert_close(moved, towers.text(tokens) + 2.0)


@pytest.mark.parametrize("normalize", [False, True])
def test_the_head_of_a_tower(normalize):
    towers = Towers()
    tower = Call(towers, "encode_image", normalize=normalize)
    embedder = LaplaceEmbedder(tower).fit([(X, Y)], progress=False)
    assert embedder.head_.module is towers.image
    assert embedder.head_.normalized is normalize
    torch.testing.assert_close(
        embedder(X).mean, nn.functional.normalize(towers.image(X), dim=-1).detach()
    )


def test_what_is_no_method():
    with pytest.raises(InputError, match="method='encode_imge'.*Towers"):
        Call(Towers(), "encode_imge")
    with pytest.raises(InputError, match="model=.* is a name"):
        Call("clip", "encode_image")
    assert "encode_image, normalize=True" in repr(Call(Towers(), "encode_image", normalize=True))
