"""Images on disk under the calls that arrays have: rows, splits, loaders, fit, index, search."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Subset

from laplace_metric import LaplaceEmbedder
from laplace_metric.datasets import CentreCrop, ImageFolder, load_folder
from laplace_metric.datasets._chosen_rows import chosen_rows
from laplace_metric.datasets._pixels import Pixels
from laplace_metric.errors import InputError, LabelError, RowError
from laplace_metric.training import train_embedder


def listed(labels):
    """Images that are not there, of these classes."""
    names = [f"{number}.png" for number in range(len(labels))]
    return ImageFolder("listed", names, labels, Pixels(None, 1, 3))


@given(st.data(), st.integers(1, 30))
def test_rows_are_those_of_a_list(data, n):
    """Whole numbers, slices and masks, against Python's own lists."""
    everything = list(range(n))
    a, b = data.draw(st.tuples(*[st.one_of(st.none(), st.integers(-40, 40))] * 2))
    step = data.draw(st.one_of(st.none(), st.integers(-5, 5).filter(bool)))
    assert chosen_rows("rows", slice(a, b, step), n).tolist() == everything[a:b:step]
    mask = data.draw(st.lists(st.booleans(), min_size=n, max_size=n))
    chosen = [row for row, kept in enumerate(mask) if kept]
    for form in (mask, tuple(mask), np.array(mask), torch.tensor(mask)):
        assert chosen_rows("rows", form, n).tolist() == chosen
    rows = data.draw(st.lists(st.integers(-n, n - 1)))
    for form in (rows, np.array(rows, dtype=int), torch.tensor(rows).long(), iter(rows)):
        assert chosen_rows("rows", form, n).tolist() == [everything[row] for row in rows]


@pytest.mark.parametrize(
    ("rows", "error", "says"),
    [
        ([True, False], RowError, "there are 3 rows, 0 to 2, but boolean index did not match"),
        ([3], RowError, "there are 3 rows, 0 to 2, but index 3 is out of bounds"),
        ([0.5], InputError, "pass whole numbers"),
        (1, InputError, r"rows=1: pass whole numbers \[n\], such as \[3\].*mask \[3\]"),
        (None, InputError, "rows=None: pass whole numbers"),
        (Path("a.png"), InputError, "rows=.*a.png.*: pass whole numbers"),
        ("a.png", InputError, r"rows holds a name, 'a.png'.*mask \[3\].*isin\(images.ids, paths"),
        (["dog", "cat"], InputError, r"rows holds a name, 'dog'.*isin\(images.labels, names"),
        (np.array(["dog"], object), InputError, "rows holds a name, 'dog'"),
    ],
)
def test_rows_that_are_none(rows, error, says):
    with pytest.raises(error, match=says):
        chosen_rows("rows", rows, 3)


def test_subsets_and_items(photos):
    found = load_folder(photos)
    dogs = found.subset(found.labels == "dog")
    assert dogs.ids.tolist() == ["dog/1.png", "dog/2.png", "dog/2024/3.png"]
    assert dogs.class_names == ("dog",)
    assert torch.equal(dogs.pixels([2, 0]), found.pixels([4, 2]))
    image, label = found[-1]
    assert torch.equal(image, found.pixels()[4])
    assert (label, type(label)) == ("dog", str)
    with pytest.raises(RowError):
        found[5]
    assert len(list(found)) == 5  # iteration ends at the IndexError
    with pytest.raises(InputError, match="names no image"):
        found.pixels([])
    assert len(found.subset([])) == 0
    with pytest.raises(LabelError, match="labels has 1.*2 images"):
        ImageFolder("two", ["a", "b"], ["x"], Pixels(None, 1, 3))


@given(
    st.lists(st.sampled_from("abc"), min_size=1, max_size=60),
    st.floats(0.01, 0.99),
    st.integers(0, 9),
)
def test_a_split_has_its_share_of_every_class(labels, share, seed):
    whole = listed(labels)
    sizes = {name: labels.count(name) for name in labels}
    if max(sizes.values()) == 1:
        with pytest.raises(InputError, match="one image.*class"):
            whole.split(share, seed)
        return
    first, second = whole.split(share, seed)
    assert sorted([*first.ids, *second.ids]) == sorted(whole.ids)
    for name, n in sizes.items():
        taken = int((second.labels == name).sum())
        assert n - taken == int((first.labels == name).sum())
        assert taken == min(max(round(share * n), 1), n - 1)
    numbers = [int(name.split(".")[0]) for name in second.ids]
    assert numbers == sorted(numbers)
    assert second.ids.tolist() == whole.split(share, seed)[1].ids.tolist()


def in_order(loader):
    batches = list(loader)
    return torch.cat([x for x, _ in batches]), [name for _, names in batches for name in names]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_reads_every_image_once(photos, workers):
    found = load_folder(photos)
    before = torch.get_rng_state()
    images, names = in_order(found.loader(2, workers=workers))
    assert torch.equal(images, found.pixels())
    assert names == found.labels.tolist()
    assert [len(y) for _, y in found.loader(2, workers=workers)] == [2, 2, 1]
    assert torch.equal(torch.get_rng_state(), before)
    for numbers, expected in ((True, found.numbers), (False, None)):
        _, labels = next(iter(found.loader(5, workers=workers, numbers=numbers)))
        assert (labels.tolist() if numbers else labels) == (
            expected.tolist() if numbers else found.labels.tolist()
        )


def test_a_loader_that_shuffles(photos):
    found = load_folder(photos)
    orders = [in_order(found.loader(2, shuffle=True, seed=seed))[0] for seed in range(9)]
    again = in_order(found.loader(2, shuffle=True, seed=3))[0]
    assert torch.equal(orders[3], again)
    assert len({tuple(x.flatten().tolist()) for x in orders}) > 4
    loader = found.loader(5, shuffle=True, seed=0)
    assert not torch.equal(in_order(loader)[0], in_order(loader)[0])
    for options, says in (((0,), "batch_size"), ((2, False, None, -1), "workers")):
        with pytest.raises(InputError, match=says):
            found.loader(*options)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_loader_of_pytorch_takes_it_too(photos, workers):
    found = load_folder(photos)
    images, names = in_order(DataLoader(found, batch_size=2, num_workers=workers))
    assert torch.equal(images, found.pixels())
    assert names == found.labels.tolist()
    part = DataLoader(Subset(found, [4, 0]), batch_size=2)
    assert torch.equal(next(iter(part))[0], found.pixels([4, 0]))
    alone = ImageFolder("alone", found.ids.tolist(), None, found.reader)
    assert torch.equal(torch.cat(list(DataLoader(alone, batch_size=2))), found.pixels())


def test_thumbnails_are_read_one_by_one(write, tmp_path):
    write("photos/1.png", (400, 100))
    write("photos/2.png", (9, 7), mode="L")
    found = load_folder(tmp_path / "photos", transform=CentreCrop(8, 0.5, 0.5))
    thumbnails = found.thumbnails
    assert [picture.shape for picture in thumbnails] == [(40, 160, 3), (7, 9, 3)]
    assert thumbnails[-1].dtype == np.uint8
    assert len(thumbnails[1:]) == 1
    with pytest.raises(RowError):
        thumbnails[2]
    (tmp_path / "photos" / "1.png").unlink()
    assert thumbnails[1].shape == (7, 9, 3)


@pytest.fixture
def shades(tmp_path):
    """Sixty small pictures of four colours, with noise; and the model that sees the colour."""
    from PIL import Image

    g, names = np.random.default_rng(0), ("red", "green", "blue", "black")
    for number in range(60):
        colour = np.eye(4, 3)[number % 4] * 150 + 50
        array = np.clip(colour + g.normal(0, 25, (8, 8, 3)), 0, 255).astype(np.uint8)
        path = tmp_path / "shades" / names[number % 4] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(array).save(path)
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.AvgPool2d(8), torch.nn.Flatten(), torch.nn.Linear(3, 6, bias=False)
    )
    return load_folder(tmp_path / "shades"), model


def test_fit_index_calibrate_search_take_it_as_arrays(shades):
    found, model = shades
    items, queries = found.split(0.4)
    lazy = LaplaceEmbedder(model).fit(items, progress=False)
    array = LaplaceEmbedder(model).fit(items.pixels(), items.labels, progress=False)
    torch.testing.assert_close(lazy.posterior_.spectrum, array.posterior_.spectrum)
    index = lazy.index(items, ids=items.ids, progress=False)
    index.calibrate(queries, k=3)
    other = array.index(items.pixels(), items.labels, items.ids, progress=False)
    other.calibrate(queries.pixels(), queries.labels, k=3)
    one, two = index.search(queries, k=3), other.search(queries.pixels(), k=3)
    assert one.ids.tolist() == two.ids.tolist()
    torch.testing.assert_close(one.match_probability, two.match_probability)
    assert (one.labels[:, 0] == queries.labels).all()
    assert str(index.evaluate(queries)) == str(other.evaluate(queries.pixels(), queries.labels))
    unlabelled = ImageFolder("new", queries.ids.tolist(), None, queries.reader)
    assert index.search(unlabelled, k=3).ids.tolist() == two.ids.tolist()
    figure = one.figure(queries.thumbnails, items.thumbnails, truth=queries.labels)
    assert len(figure.axes) == 8 * 4
    torch.testing.assert_close(
        lazy.uncertainties(queries, progress=False), array(queries.pixels()).uncertainty
    )


def test_cross_index_and_training(shades):
    from pytorch_metric_learning.losses import ContrastiveLoss

    found, model = shades
    trained = copy.deepcopy(model)
    loader = found.loader(8, shuffle=True, seed=0, numbers=True)
    train_embedder(trained, loader, ContrastiveLoss(), epochs=1, progress=False)
    assert not torch.equal(model[2].weight, trained[2].weight)
    with pytest.raises(InputError, match="trained on"):  # its items cannot calibrate it
        LaplaceEmbedder(trained).cross_index(found, ids=found.ids, progress=False)
    index = LaplaceEmbedder(model).cross_index(found, ids=found.ids, progress=False)
    assert index.search(found.pixels([0, 7])).ids[:, 0].tolist() == found.ids[[0, 7]].tolist()
    assert set(index.labels) == set(found.class_names)
