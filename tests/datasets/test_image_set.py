from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from laplace_metric.datasets import ImageSet
from laplace_metric.errors import InputError, LabelError, RowError


def numbered(n: int, dtype: torch.dtype = torch.uint8) -> ImageSet:
    """Image i is filled with i (over 255 as a float), and so are its label and extra."""
    values = torch.arange(n)
    images = (values.to(dtype) if dtype == torch.uint8 else values / 255).reshape(-1, 1, 1, 1)
    names = tuple(map(str, range(n)))
    return ImageSet(images.expand(n, 1, 2, 3), values, "numbered", names, {"twice": 2 * values})


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_pixels_are_float32_in_unit_range(dtype: torch.dtype) -> None:
    pixels = numbered(256, dtype).pixels()
    assert pixels.dtype == torch.float32
    assert torch.equal(pixels[:, 0, 0, 0], torch.arange(256) / 255)
    assert torch.equal(numbered(256, dtype).pixels(torch.tensor([7, 3])), pixels[[7, 3]])


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        ("a", InputError, r"rows holds a name, 'a'.*mask \[6\].*isin\(images.labels"),
        ([0.5], InputError, "rows has .*float.*pass whole numbers"),
        (None, InputError, "rows=None: pass whole numbers"),
        ([6], RowError, "rows: there are 6 rows, 0 to 5"),
        (6, RowError, "rows: there are 6 rows, 0 to 5"),
    ],
)
def test_rows_that_are_none_are_named(rows: object, error: type[InputError], message: str) -> None:
    with pytest.raises(error, match=message):
        numbered(6).pixels(rows)


@pytest.mark.parametrize("rows", [[1, -2], slice(1, 5, 3), torch.arange(6) % 3 == 1])
def test_pixels_of_rows_in_every_form(rows: object) -> None:
    assert torch.equal(numbered(6).pixels(rows), numbered(6).pixels()[[1, 4]])
    assert torch.equal(numbered(6).pixels(4), numbered(6).pixels()[4])


@given(n=st.integers(1, 23), batch_size=st.integers(1, 9), shuffle=st.booleans())
def test_loader_yields_every_image_once(n: int, batch_size: int, shuffle: bool) -> None:
    loader = numbered(n).loader(batch_size, shuffle, torch.Generator().manual_seed(0))
    batches = list(loader)
    assert len(loader) == len(batches) == -(-n // batch_size)
    assert [len(y) for _, y in batches[:-1]] == [batch_size] * (len(batches) - 1)
    labels = torch.cat([y for _, y in batches])
    assert labels.sort().values.tolist() == list(range(n))
    assert shuffle or labels.tolist() == list(range(n))
    pixels = torch.cat([x for x, _ in batches])
    assert torch.equal(pixels[:, 0, 1, 2], labels / 255)


@pytest.mark.parametrize("indices", [[-5, -2], torch.arange(6) % 3 == 1])
def test_subset_keeps_rows_aligned(indices: object) -> None:
    part = numbered(6).subset(indices)
    assert part.labels.tolist() == [1, 4]
    assert part.images[:, 0, 0, 0].tolist() == [1, 4]
    assert part.extras["twice"].tolist() == [2, 8]
    assert part.class_names == numbered(6).class_names
    assert list(part.subset([]).loader(2)) == []


IMAGES = torch.zeros(2, 1, 3, 3)
LABELS = torch.tensor([0, 1])


@pytest.mark.parametrize("labels", [LABELS.int(), LABELS[:1], LABELS - 1, LABELS + 1])
def test_bad_labels(labels: Tensor) -> None:
    with pytest.raises(LabelError, match="labels must"):
        ImageSet(IMAGES, labels, "bad", ("a", "b"))
