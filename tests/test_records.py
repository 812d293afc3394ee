"""Values as parts of a file, by the types of their fields: tensors, records in lists, mappings."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from jaxtyping import Float, Float32, Float64, Int64, UInt64
from torch import Tensor

from laplace_metric import io as files
from laplace_metric.calibration.rules._gallery_change import GalleryChange
from laplace_metric.errors import FileFormatError
from laplace_metric.io import Fields, record, restored, saved, unsaved

KIND = files.Kind("fitted", "a saved fit", 1)


@dataclass(frozen=True)
class Layer:
    """A record in a list: with an array of its own."""

    name: str
    bias: Float[Tensor, " Z"]
    scale: float = saved(0, infinite=True)


@dataclass(frozen=True)
class Score:
    """A record in a mapping: without arrays."""

    p_value: float = saved(0, 1)


@dataclass(frozen=True)
class Fit:
    """Tensors of every kind, and records in a list and in a mapping."""

    head: str = unsaved()
    points: Float[Tensor, "N Z"] = saved(-2, 2)
    trace: Float[Tensor, " N"] = saved(0, infinite=True)
    centre: Float64[Tensor, " Z"] = saved()
    root: Float32[Tensor, "Z Z"] = saved()
    codes: Int64[Tensor, " N"] = saved(0, 9)
    rows: UInt64[np.ndarray, " N"] = saved()
    layers: tuple[Layer, ...] = saved()
    history: dict[str, list[Score]] = saved()
    pair: tuple[float, float] = saved(0, 1)
    weights: Float[Tensor, " Z"] | None = saved(default=None)
    group: Float[np.ndarray, " N"] = saved(empty=True, default_factory=lambda: np.empty(0))
    share: float = saved(0, 1, default=0.5)
    level: float = 0.0

    def check_saved(self) -> None:
        if bool((self.trace.diff() < 0).any()):
            raise FileFormatError("fit/trace falls")


def fit(dtype: torch.dtype = torch.float32) -> Fit:
    return Fit(
        head="head",
        points=torch.linspace(-1, 1, 6).reshape(3, 2).to(dtype),
        trace=torch.tensor([0.0, 1.0, math.inf], dtype=dtype),
        centre=torch.ones(2, dtype=torch.float64),
        root=torch.eye(2),
        codes=torch.arange(3),
        rows=np.array([1, 2, 2**64 - 1], np.uint64),
        layers=(
            Layer("a", torch.zeros(2, dtype=dtype), math.inf),
            Layer("b", torch.ones(2, dtype=dtype), 0.5),
        ),
        history={"images": [Score(0.0), Score(1.0)], "texts": []},
        pair=(0.25, 1.0),
        group=np.arange(3.0),
    )


def load(path, **options):
    saved_file = files.SavedFile(path, **options)
    with saved_file.checked():
        part = saved_file.part(KIND)
        given = {"head": "head"}
        values = saved_file.verified
        return restored(Fit, Fields(part.content, "fit"), part.arrays, given=given, values=values)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_tensors_come_back_in_the_type_that_they_had(dtype, tmp_path):
    one = fit(dtype)
    files.write(tmp_path / "a", files.Part(KIND, *record(one)))
    again = load(tmp_path / "a")
    for name in ("points", "trace", "centre", "root", "codes"):
        theirs, mine = getattr(again, name), getattr(one, name)
        assert theirs.dtype == mine.dtype
        assert torch.equal(theirs, mine)
    assert np.array_equal(again.rows, one.rows)
    assert again.rows.dtype == np.uint64
    for theirs, mine in zip(again.layers, one.layers, strict=True):
        assert (theirs.name, theirs.scale) == (mine.name, mine.scale)
        assert torch.equal(theirs.bias, mine.bias)
    assert again.history == one.history
    assert again.pair == one.pair
    assert again.weights is None
    assert np.array_equal(again.group, one.group)


def test_what_a_reader_gives_is_in_no_file():
    content, arrays = record(fit())
    assert "head" not in content
    assert sorted(arrays)[:4] == ["centre", "codes", "group", "layers.0.bias"]
    assert content["layers"] == [{"name": "a", "scale": math.inf}, {"name": "b", "scale": 0.5}]
    with pytest.raises(TypeError, match="head"):
        restored(Fit, Fields(content, "fit"), arrays)


def test_what_record_leaves_out_may_be_missing_and_nothing_else():
    one = replace(fit(), group=np.empty(0), weights=torch.ones(2))
    content, arrays = record(one)
    again = restored(Fit, Fields(content, "fit"), arrays, given={"head": ""})
    assert torch.equal(again.weights, one.weights)
    assert again.group.shape == (0,)
    del content["share"]  # it has a default, which a file does not rely on
    with pytest.raises(FileFormatError, match="fit.share is missing"):
        restored(Fit, Fields(content, "fit"), arrays, given={"head": ""})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c, a: a.pop("points"), "fit/points is missing"),
        (lambda c, a: a.update(points=a["points"].long()), "points is int64, not floating-point"),
        (lambda c, a: a.update(points=a["points"][0]), r"points has shape \[2\], not \['any', 'a"),
        (lambda c, a: a["points"][1].fill_(math.nan), "fit/points holds nan"),
        (lambda c, a: a["points"][1].fill_(math.inf), "fit/points holds inf"),
        (lambda c, a: a["points"][1].fill_(2.5), "points holds 2.5, which is not from -2 to 2"),
        (lambda c, a: a["trace"][:1].fill_(-1), "fit/trace holds -1"),
        (lambda c, a: a["trace"][:1].fill_(math.nan), "fit/trace holds nan"),
        (lambda c, a: a.update(trace=a["trace"].flip(0)), "fit/trace falls"),
        (lambda c, a: a.update(trace=a["trace"][1:]), r"trace has shape \[2\], not \[3\]"),
        (lambda c, a: a.update(centre=a["centre"].float()), "centre is float32, not float64"),
        (lambda c, a: a.update(root=a["root"].double()), "root is float64, not float32"),
        (lambda c, a: a.update(root=a["root"][:, :1]), r"root has shape \[2, 1\], not \[2, 2\]"),
        (lambda c, a: a.update(codes=a["codes"].int()), "codes is int32, not int64"),
        (lambda c, a: a["root"][:1].fill_(math.inf), "fit/root holds inf, which is not finite"),
        (lambda c, a: a["codes"][:1].fill_(-1), "fit/codes holds -1"),
        (lambda c, a: a["codes"][:1].fill_(10), "fit/codes holds 10"),
        (lambda c, a: a.update(rows=a["rows"].view(torch.int64)), "rows is int64, not uint64"),
        (lambda c, a: a.update(weights=torch.ones(3)), r"weights has shape \[3\], not \[2\]"),
        (lambda c, a: a.pop("layers.1.bias"), "fit.layers.1/bias is missing"),
        (lambda c, a: a["layers.1.bias"].fill_(math.nan), "fit.layers.1/bias holds nan"),
        (lambda c, a: c["layers"][1].pop("name"), "fit.layers.1.name is missing"),
        (lambda c, a: c["layers"][1].update(scale=-math.inf), "fit.layers.1.scale is -inf"),
        (lambda c, a: c["layers"][1].update(scale=math.nan), "fit.layers.1.scale is nan"),
        (lambda c, a: c["layers"][1].update(scale=10**400), "fit.layers.1.scale is 1000"),
        (lambda c, a: c["layers"][1].update(scale="inf"), "fit.layers.1.scale is 'inf'"),
        (lambda c, a: c.update(level=math.inf), "fit.level is inf, not a number"),
        (lambda c, a: c["layers"].append(None), "fit.layers.2 is None, not an object"),
        (lambda c, a: c.update(layers={}), "fit.layers is {}, not a list"),
        (lambda c, a: c.update(layers=None), "fit.layers is None, not a list"),
        (lambda c, a: c.update(history=[]), r"fit.history is \[\], not an object"),
        (lambda c, a: c["history"].update(texts=3), "fit.history.texts is 3, not a list"),
        (
            lambda c, a: c["history"]["images"][1].update(p_value=2),
            "fit.history.images.1.p_value is 2, not a number from 0 to 1",
        ),
        (lambda c, a: c["pair"].pop(), "fit.pair has 1 entries, not 2"),
        (lambda c, a: c.update(pair=[0.5, 2]), "fit.pair.1 is 2, not a number from 0 to 1"),
        (lambda c, a: c.update(pair=[0.5, math.inf]), "fit.pair.1 is inf, not a number from 0"),
    ],
)
def test_a_record_that_somebody_changed_is_named(change, message, tmp_path):
    path = tmp_path / "fit"
    files.write(path, files.Part(KIND, *record(fit())))
    part = files.SavedFile(path).part(KIND)
    change(part.content, part.arrays)
    files.write(path, part)
    with pytest.raises(FileFormatError, match=message) as caught:
        load(path)
    assert str(path) in str(caught.value)


def test_values_of_a_mapped_file_stay_on_disk_and_their_types_do_not(tmp_path):
    path = tmp_path / "fit"
    content, arrays = record(fit())
    files.write(path, files.Part(KIND, content, {**arrays, "points": torch.full((3, 2), math.nan)}))
    assert load(path, mapped=True).points.isnan().all()
    with pytest.raises(FileFormatError, match="fit/points holds nan"):
        load(path, mapped=True, verify=True)
    files.write(path, files.Part(KIND, content, {**arrays, "points": torch.ones(3, 3)}))
    with pytest.raises(FileFormatError, match=r"fit/centre.*shape \[2\].*not \[3\]"):
        load(path, mapped=True)


def test_a_record_of_numbers_needs_no_torch():
    code = """
import sys
from dataclasses import dataclass
import numpy as np
from jaxtyping import Float
from laplace_metric.io import Fields, record, restored, saved
@dataclass(frozen=True)
class Knots:
    values: Float[np.ndarray, " n"] = saved(0, 1)
content, arrays = record(Knots(np.ones(3)))
assert restored(Knots, Fields(content), arrays).values.tolist() == [1, 1, 1]
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"items": 0}, "rule.gallery.items is 0, not a whole number of at least 1"),
        ({"changed": -1}, "rule.gallery.changed is -1"),
        ({"n_new_classes": None}, "rule.gallery.n_new_classes is None"),
        ({"n_lost_classes": -1}, "rule.gallery.n_lost_classes is -1"),
        ({"named": [1]}, r"rule.gallery.named is \[1\], not a list of str"),
    ],
)
def test_a_change_that_no_gallery_had_is_refused(changes, message):
    change = GalleryChange(700, 90, 2, ("'a'", "'b'"), 1, ("'c'",), ("'d'",))
    content = change.content()
    assert GalleryChange.of_content(Fields(content, "rule.gallery")) == change
    with pytest.raises(FileFormatError, match=message):
        GalleryChange.of_content(Fields({**content, **changes}, "rule.gallery"))
