"""Ids and labels: numbers stay numbers, strings stay strings, nothing else gets in."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from laplace_metric.errors import InputError
from laplace_metric.inputs._columns import Column

WORDS = st.lists(st.text(st.characters(blacklist_characters="\0")), min_size=1, max_size=20)
NUMBERS = st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=20)


@settings(max_examples=60, deadline=None)
@given(WORDS | NUMBERS)
@example(["\udc80 is what the system makes of a byte that is not UTF-8"])
@example(["", "", ""])
def test_tensors_give_back_what_went_in(values):
    column = Column.of("ids", values)
    again = Column.from_tensors("ids", column.tensors("ids"))
    assert again is not None
    assert again.values.tolist() == values
    assert again.is_text == isinstance(values[0], str)
    assert Column.from_tensors("labels", column.tensors("ids")) is None


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.lists(st.integers(-2, 11)))
def test_codes_are_the_places_among_the_sorted_unique(own, asked):
    places = {value: i for i, value in enumerate(sorted(set(own)))}
    wanted = [places.get(value, -1) for value in asked]
    assert Column.of("labels", own).codes_of(asked).tolist() == wanted
    letters = [chr(97 + v) for v in own], [chr(97 + v) for v in asked]
    assert Column.of("labels", letters[0]).codes_of(letters[1]).tolist() == wanted


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1.5, 2.0], "ids are float64: pass whole numbers or strings"),
        (["a", 1], "ids are mixed"),
        ([True, False], "ids are bool"),
        ("ab", "ids is a str: pass a list"),
        ({"a": 1}, "ids is a dict"),
        (7, "ids is a int"),
        ([[1], [2]], r"ids has shape \(2, 1\)"),
    ],
)
def test_anything_else_is_refused(values, message):
    with pytest.raises(InputError, match=message):
        Column.of("ids", values)


def test_duplicates_are_named_plainly():
    assert Column.of("ids", [3, 1, 3]).duplicates() == [3]
    assert Column.of("ids", ["b", "a", "b"]).duplicates() == ["b"]
    with pytest.raises(InputError, match="ids has 1.*2 items"):
        Column.of("ids", [1], 2)
    with pytest.raises(InputError, match="labels are numbers.*strings here"):
        Column.of("labels", [1]).joined("labels", Column.of("labels", ["a"]))


@pytest.mark.parametrize(
    "values",
    [
        [1, 2**63, 2**63 + 5],
        [2**63, -1, 2**64],
        np.array([1, 2**63, 2**63 + 5], np.uint64),
        torch.tensor([1, 2**63, 2**63 + 5], dtype=torch.uint64),
    ],
)
def test_numbers_that_int64_cannot_hold_are_refused(values):
    with pytest.raises(InputError, match="ids hold 2.*int64.*9223372036854775"):
        Column.of("ids", values)
    assert Column.of("ids", np.array([2**63 - 1], np.uint64)).values.tolist() == [2**63 - 1]


def test_a_string_that_ends_in_nul_is_another_string():
    column = Column.of("ids", ["a\0", "b", "b\0\0"])
    assert column.codes_of(["a", "a\0", "b\0", "b\0\0", "b"]).tolist() == [-1, 0, -1, 2, 1]
    assert Column.of("ids", ["a", "a\0"]).duplicates() == []
    assert Column.of("ids", ["a\0", "a\0"]).duplicates() == ["a\0"]
