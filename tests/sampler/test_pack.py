"""The ready-made step `pack`."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecd.errors import RecordError
from cachecd.sampler.transforms import Item
from cachecd.sampler.transforms.pack import Pack, best_fit, plain, survey
from tests.sampler.steps import over

# Lengths of documents, and window and stride.
LENGTHS = st.lists(st.integers(1, 40), max_size=30)
SHAPES = st.integers(2, 20).flatmap(
    lambda window: st.tuples(st.just(window), st.integers(1, window))
)


def documents(lengths: list[int]) -> list[Any]:
    """Each token is unique, so a test can see where it went."""
    ends = np.cumsum([0, *lengths])
    return [np.arange(a, b, dtype=np.uint16) for a, b in pairwise(ends)]


def packed(items: list[Item], **options: Any) -> list[Item]:
    given: Any = {"feature": "tokens", "window": 4, "stride": 4, "remainder": "drop"}
    step = Pack(**{**given, "segments": False, "fit": "plain", **options})
    return over(step, items)


def records(*lists: list[int]) -> list[Item]:
    return [{"tokens": np.array(tokens, np.uint16)} for tokens in lists]


@given(LENGTHS, SHAPES)
def test_plain_windows_have_each_token_in_order(lengths: list[int], shape: tuple[int, int]):
    window, stride = shape
    windows = list(plain(documents(lengths), window, stride))
    for number, (tokens, _) in enumerate(windows):
        begin = number * stride
        assert tokens.tolist() == list(range(begin, min(begin + window, sum(lengths))))
        assert number == len(windows) - 1 or tokens.size == window
    assert sum(lengths) == (windows[-1].tokens[-1] + 1 if windows else 0)
    if len(windows) > 1:
        assert windows[-1].tokens[-1] > windows[-2].tokens[-1], "the last window has a new token"


@given(LENGTHS, SHAPES)
def test_best_fit_cuts_only_what_no_window_holds(lengths: list[int], shape: tuple[int, int]):
    window, stride = shape
    windows = [w.tokens.tolist() for w in best_fit(documents(lengths), window, stride)]
    assert all(0 < len(tokens) <= window for tokens in windows)
    for document in documents(lengths):
        tokens = document.tolist()
        if len(tokens) <= window:
            assert sum(_has(each, tokens) for each in windows) == 1
        else:
            parts = [t for each in windows for t in each if t in set(tokens)]
            assert set(parts) == set(tokens)


@given(LENGTHS, st.integers(2, 20))
def test_best_fit_leaves_no_two_windows_that_would_fit_into_one(lengths: list[int], window: int):
    sizes = sorted(w.tokens.size for w in best_fit(documents(lengths), window, window))
    assert all(a + b > window for a, b in pairwise(sizes))


def _has(whole: list[int], part: list[int]) -> bool:
    return any(whole[i : i + len(part)] == part for i in range(len(whole)))


@given(LENGTHS, SHAPES, st.sampled_from([plain, best_fit]))
def test_numbers_count_the_documents_of_a_window_from_one(
    lengths: list[int], shape: tuple[int, int], pack: Any
):
    numbers = {}
    for number, document in enumerate(documents(lengths)):
        numbers |= dict.fromkeys(document.tolist(), number)
    for tokens, of_document in pack(documents(lengths), *shape):
        given = of_document.tolist()
        assert given[0] == 1
        for i in range(1, len(given)):
            same = numbers[int(tokens[i])] == numbers[int(tokens[i - 1])]
            continues = same and tokens[i] == tokens[i - 1] + 1
            assert given[i] - given[i - 1] == (0 if continues else 1)


def test_the_remainder_is_dropped_and_counted():
    windows = packed(records([1, 2, 3], [4, 5, 6]))
    assert [window["tokens"].tolist() for window in windows[:1]] == [[1, 2, 3, 4]]  # type: ignore[index]
    assert str(windows[1]) == (
        "pack: the last window of a group has 2 tokens, expected 4 (remainder: drop)"
    )


def test_the_remainder_is_padded_and_masked():
    *_, last = packed(records([1, 2, 3], [4, 5, 6]), remainder="pad", segments=True)
    assert not isinstance(last, RecordError)
    assert last["tokens"].tolist() == [5, 6, 0, 0]
    assert last["tokens"].dtype == np.uint16
    assert last["mask"].tolist() == [True, True, False, False]
    assert last["segments"].tolist() == [1, 1, 0, 0]


def test_windows_overlap_where_the_stride_is_smaller():
    windows = packed(records([1, 2, 3, 4, 5], [6, 7]), stride=3)
    assert [window["tokens"].tolist() for window in windows] == [[1, 2, 3, 4], [4, 5, 6, 7]]  # type: ignore[index]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "has no feature 'tokens'"),
        (b"text", "'tokens' has bytes32 [], expected a list of whole numbers"),
        (np.zeros((2, 2), np.uint16), "has uint16 [2, 2], expected a list"),
        (np.zeros(2, np.float32), "has float32 [2], expected a list"),
        (np.zeros(2, np.int64), "has int64, but the documents before it have uint16"),
    ],
)
def test_a_record_without_tokens_costs_that_record(value: Any, message: str):
    odd: Item = {} if value is None else {"tokens": value}
    [window, error] = packed([*records([1, 2, 3]), odd, *records([4])])
    assert window["tokens"].tolist() == [1, 2, 3, 4]  # type: ignore[index]
    assert message in str(error)


def test_an_empty_document_is_no_document():
    empty: Item = {"tokens": []}
    [window] = packed([*records([1, 2], []), empty, *records([3, 4])], segments=True)
    assert window["segments"].tolist() == [1, 1, 2, 2]  # type: ignore[index]


def test_survey_counts_padding_and_cut_documents_of_each_fit():
    # Plain: [aaa b] [bb cc] [c...]: b and c are cut. Best fit: [aaa.] [bbb.] [ccc.]
    assert survey([3, 3, 3], 4, 4) == {"plain": (0.25, pytest.approx(2 / 3)), "best": (0.25, 0.0)}
    assert survey([0, 9], 4, 4) == {"plain": (0.25, 1.0), "best": (0.25, 1.0)}
