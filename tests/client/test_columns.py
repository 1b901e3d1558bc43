import numpy as np
import pytest

from cachecd_client.errors import CallerError
from cachecd_client.loader.columns import Bytes, Ragged, RaggedBytes


def splits(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


@pytest.fixture
def ragged():
    return Ragged(np.arange(6), splits(0, 2, 2, 6))


@pytest.fixture
def words():
    return Bytes(np.frombuffer(b"onetwo", np.uint8), splits(0, 3, 3, 6))


def test_arithmetic_with_encoded_pictures_names_decode(words):
    for call in (lambda: words / 255, lambda: 2 * words, lambda: words - 1):
        with pytest.raises(CallerError, match="decode="):
            call()


def test_a_ragged_column_indexes_like_a_list(ragged):
    assert len(ragged) == 3
    assert [row.tolist() for row in ragged] == [[0, 1], [], [2, 3, 4, 5]]
    assert ragged[-1].tolist() == [2, 3, 4, 5]
    assert ragged[np.int64(0)].tolist() == [0, 1]
    assert [row.tolist() for row in ragged[::2]] == [[0, 1], [2, 3, 4, 5]]
    for index in (3, -4):
        with pytest.raises(IndexError, match=f"row {index} of a column of 3 rows"):
            ragged[index]


@pytest.mark.parametrize(
    "cut", [slice(None), slice(1, 3), slice(2, 1), slice(-2, None), slice(3, None), slice(0, 9)]
)
def test_a_slice_is_a_column_over_the_same_memory(ragged, words, cut):
    cut_ragged = ragged[cut]
    assert [r.tolist() for r in cut_ragged] == [[0, 1], [], [2, 3, 4, 5]][cut]
    assert isinstance(cut_ragged, Ragged)
    assert cut_ragged.row_splits[0] == 0
    assert list(words[cut]) == [b"one", b"", b"two"][cut]
    assert isinstance(words[cut], Bytes)


def test_bytes_come_as_copies_or_views(words):
    assert list(words) == [b"one", b"", b"two"]
    assert words[0] == b"one"
    for row in (2, -1):
        assert words.view(row).tobytes() == b"two"
        assert np.shares_memory(words.view(row), words.data)


def test_lists_of_bytes(words):
    column = RaggedBytes(words, splits(0, 0, 2, 3))
    assert list(column) == [[], [b"one", b""], [b"two"]]
    assert list(column[1:]) == [[b"one", b""], [b"two"]]
    assert list(column[1:][1:]) == [[b"two"]]
    assert column[-1] == [b"two"]


def test_the_repr_shows_the_first_rows_and_is_short(words):
    assert repr(words) == "<Bytes column of 3 rows: b'one', b'', b'two'>"
    many = Ragged(np.arange(10**4), splits(0, 3, *range(1000, 10**4 + 1, 1000)))
    assert repr(many).startswith("<Ragged column of 11 rows: [0, 1, 2], [3, 4, 5, 6, 7, 8, ...], ")
    long = Bytes(np.zeros(10**6, np.uint8), splits(0, 10**6))
    assert len(repr(RaggedBytes(long, splits(0, 1)))) < 100
