"""Bad arrays, labels, ids, numbers, names and generators, made from good ones."""

from __future__ import annotations

import datetime
import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import torch

NAN, INF = float("nan"), float("inf")


@dataclass(frozen=True)
class Variant:
    """What a plain value is replaced by; ``same``: it means the same, so must the result."""

    name: str
    make: Callable[[Any, random.Random], Any]
    same: bool = False


def constant(value: Any) -> Variant:
    """That value, whatever the plain one is."""
    return Variant(repr(value)[:40], lambda _plain, _rng: value)


def variants(*, same: bool = False, **makers: Callable[[Any], Any]) -> list[Variant]:
    """One for each function of the plain value."""

    def variant(name: str, maker: Callable[[Any], Any]) -> Variant:
        return Variant(name, lambda plain, _rng: maker(plain), same)

    return [variant(name, maker) for name, maker in makers.items()]


def tensor(x: Any) -> torch.Tensor:
    return x if torch.is_tensor(x) else torch.as_tensor(np.asarray(x))


def array(x: Any) -> np.ndarray:
    return tensor(x).numpy().copy()


def swapped(x: Any) -> np.ndarray:
    """The other byte order."""
    a = array(x)
    return a.astype(a.dtype.newbyteorder())


def with_entry(value: float) -> Callable[[Any], torch.Tensor]:
    """The first entry is replaced."""

    def make(x: Any) -> torch.Tensor:
        t = tensor(x).clone()
        t = t if t.is_floating_point() else t.double()
        t.view(-1)[:1] = value
        return t

    return make


def quiet(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same function without its warnings."""

    def made(x: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return make(x)

    return made


def ragged(x: Any) -> list[Any]:
    rows = tensor(x).tolist()
    return [row[:-1] if isinstance(row, list) and i else row for i, row in enumerate(rows)] + [[1]]


def read_only(x: Any) -> np.ndarray:
    a = array(x)
    a.flags.writeable = False
    return a


def strided(x: Any) -> torch.Tensor:
    """Every other entry of the last dimension."""
    return torch.stack([tensor(x)] * 2, -1)[..., 0]


SAME_ARRAYS = variants(
    same=True,
    numpy=array,
    float64=lambda x: tensor(x).double(),
    big_endian=swapped,
    reversed_numpy=lambda x: array(x)[::-1].copy()[::-1],
    fortran=lambda x: np.asfortranarray(array(x)),
    longdouble=lambda x: array(x).astype(np.longdouble),
    nested_list=lambda x: tensor(x).tolist(),
    tuple_of_rows=lambda x: tuple(tensor(x).tolist()),
    list_of_tensors=lambda x: list(tensor(x)),
    strided=strided,
    requires_grad=lambda x: tensor(x).clone().requires_grad_(),
    parameter=lambda x: torch.nn.Parameter(tensor(x).clone()),
    negative_view=lambda x: torch._neg_view(-tensor(x)),
    read_only=read_only,
)

JUNK = [
    *map(
        constant,
        [None, 5, 0.5, "x", b"x", True, [], {}, (), {1, 2}, [[]], [[[[]]]], object(), print, ...],
    ),
    *variants(
        seed=lambda _x: (i for i in range(3)),
        date=lambda _x: datetime.datetime(2020, 1, 1),
        dtype=lambda _x: torch.float32,
        itself_in_a_dict=lambda x: {"x": x},
        iterator=lambda x: iter([x]),
    ),
]

BAD_TENSORS = variants(
    sparse=lambda x: tensor(x).to_sparse(),
    sparse_csr=quiet(lambda _x: torch.eye(4).to_sparse_csr()),
    meta=lambda x: tensor(x).to("meta"),
    quantised=quiet(lambda x: torch.quantize_per_tensor(tensor(x).float(), 0.1, 0, torch.qint8)),
    nested_tensor=quiet(lambda x: torch.nested.nested_tensor(list(tensor(x)))),
    mkldnn=lambda x: tensor(x).float().to_mkldnn(),
    complex=lambda x: tensor(x).to(torch.complex64),
    float8=lambda x: tensor(x).float().to(torch.float8_e4m3fn),
    bits=lambda x: tensor(x).to(torch.uint16),
    bool=lambda x: tensor(x) > 0,
    scalar=lambda _x: torch.tensor(1.0),
    no_rows=lambda x: tensor(x)[:0],
    no_columns=lambda x: tensor(x)[..., :0],
    one_row=lambda x: tensor(x)[:1],
    one_more_dimension=lambda x: tensor(x)[None],
    one_less_dimension=lambda x: tensor(x)[0],
    fewer_rows=lambda x: tensor(x)[:-1],
    fewer_columns=lambda x: tensor(x)[..., :-1],
    objects=lambda x: array(x).astype(object),
    strings=lambda x: array(x).astype(str),
    dates=lambda x: np.zeros(np.shape(tensor(x)), dtype="datetime64[s]"),
    structured=lambda x: np.zeros(len(tensor(x)) if tensor(x).ndim else 1, dtype=[("a", "f4")]),
    masked=lambda x: np.ma.masked_array(array(x), mask=True),
    ragged=ragged,
)

BAD_NUMBERS = variants(
    nan=with_entry(float("nan")),
    infinity=with_entry(float("inf")),
    minus_infinity=with_entry(float("-inf")),
    all_nan=lambda x: torch.full_like(tensor(x).double(), float("nan")),
    huge=lambda x: tensor(x) * 1e20,
    beyond_float32=lambda x: tensor(x).double() * 1e60,
    tiny=lambda x: tensor(x) * 1e-30,
    subnormal=lambda x: tensor(x).double() * 1e-310,
    zeros=lambda x: torch.zeros_like(tensor(x)),
    zero_row=lambda x: torch.cat([torch.zeros_like(tensor(x)[:1]), tensor(x)[1:]]),
    equal_rows=lambda x: tensor(x)[:1].expand(tensor(x).shape).clone(),
    offset=lambda x: tensor(x) + 1e4,
    negative=lambda x: -tensor(x).abs() - 1,
    half=lambda x: tensor(x).half(),
    bfloat16=lambda x: tensor(x).bfloat16(),
    whole=lambda x: (tensor(x) * 10).long(),
    int8=lambda x: (tensor(x) * 10).to(torch.int8),
)

ARRAYS = [*SAME_ARRAYS, *BAD_TENSORS, *BAD_NUMBERS, *JUNK]

LABELS = [
    *variants(
        same=True,
        numpy=array,
        list=lambda y: tensor(y).tolist(),
        int32=lambda y: tensor(y).int(),
        int8=lambda y: tensor(y).to(torch.int8),
        big_endian=swapped,
        reversed_numpy=lambda y: array(y)[::-1].copy()[::-1],
        strided=strided,
    ),
    *variants(
        uint64=lambda y: array(y).astype(np.uint64) + np.uint64(2**63),
        uint16=lambda y: array(y).astype(np.uint16),
        floats=lambda y: tensor(y).float(),
        words=lambda y: [f"class {i}" for i in tensor(y).tolist()],
        words_and_numbers=lambda y: ["a", *tensor(y).tolist()[1:]],
        trailing_nul=lambda y: ["a\0" if i else "a" for i in tensor(y).tolist()],
        bytes=lambda y: [b"a" for _ in tensor(y)],
        one_class=lambda y: torch.zeros_like(tensor(y)),
        all_apart=lambda y: torch.arange(len(tensor(y))),
        negative=lambda y: -tensor(y) - 1,
        largest=lambda y: tensor(y) + (2**63 - 1 - 100),
        with_none=lambda y: [None, *tensor(y).tolist()[1:]],
        whole_floats=lambda y: [float(i) for i in tensor(y).tolist()],
        big_int=lambda y: [2**70, *tensor(y).tolist()[1:]],
        lists=lambda y: [[i] for i in tensor(y).tolist()],
        column=lambda y: tensor(y)[:, None],
    ),
    *BAD_TENSORS,
    *JUNK,
    *map(constant, [range(7), "abc"]),
]

IDS = [
    *LABELS,
    *variants(
        strings=lambda ids: [f"item {i}" for i in range(len(tensor(ids)))],
        duplicates=lambda ids: torch.zeros_like(tensor(ids)),
        surrogates=lambda ids: [f"\udcff{i}" for i in range(len(tensor(ids)))],
        empty_strings=lambda ids: [""] * len(tensor(ids)),
        all_bools=lambda ids: [True] * len(tensor(ids)),
    ),
    *map(constant, [[10**9], ["a"], [0, 0], [-1]]),
]

COUNTS = [
    *variants(
        same=True,
        int64=np.int64,
        uint8=np.uint8,
        int32=np.int32,
        zero_dimensional=lambda n: np.array(n),
    ),
    *map(constant, [True, False, 0, -1, 1, 2.5, 3.0, "3", None, NAN, INF, 10**30, 2**63, [], {}]),
    *map(constant, [[1], 1j, b"3", "", np.float32(3), np.bool_(True), Fraction(3), Decimal(3)]),
    *map(constant, [object(), print, (1, 2), np.array([1, 2]), np.array("3")]),
    *variants(tensor=torch.tensor, float_tensor=lambda n: torch.tensor(float(n))),
]

REALS = [
    *variants(same=True, float64=np.float64, zero_dimensional=lambda x: np.array(float(x))),
    *variants(float32=np.float32, float16=np.float16, tensor=torch.tensor),
    *map(constant, ["0.9", "x", "", None, NAN, INF, -INF, -1, -0.0, 0, 1, 2, 10**30, 10**400]),
    *map(constant, [1e-320, 1e308, True, False, [], {}, [0.5], 1j, b"1", object(), print]),
    *map(constant, [np.array([0.5, 0.5]), Decimal("0.5"), Fraction(1, 2), np.bool_(True)]),
    constant((0.1, 0.2)),
]

NAMES = [
    *variants(same=True, numpy_string=np.str_),
    *variants(upper=str.upper, bytes=str.encode, blank=lambda name: f" {name}"),
    *map(constant, ["", "no such", None, 5, 0.5, True, [], {}, (), object(), print, "a\0b"]),
]

FLAGS = list(map(constant, [None, 0, 1, "yes", "", [], {}, np.bool_(True), object()]))

GENERATORS = [
    *map(constant, [0, 7, -1, 10**30, 2**63, 1.5, True, "0", b"0", [], {}, object(), print]),
    *map(constant, [np.int64(3), np.uint8(3), float("nan")]),
    *variants(
        numpy=lambda _g: np.random.default_rng(0),
        python=lambda _g: random.Random(0),
        numpy_legacy=lambda _g: np.random.RandomState(0),
        tensor=lambda _g: torch.tensor(3),
        torch=lambda _g: torch.Generator().manual_seed(3),
    ),
]
