"""What a sample's files become, by their extensions; none is unpickled, none takes more than it may."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import zipfile
from typing import Any

import numpy as np
import pytest

from cachecd.sampler.formats import extensions
from cachecd.sampler.formats.extensions import features
from tests import zstandard

PACK = {"gz": gzip.compress, "zst": zstandard.compress}
ARRAYS = [
    np.arange(6, dtype="int64").reshape(2, 3),
    np.asfortranarray(np.arange(6, dtype="float64").reshape(2, 3)),
    np.array([1.5, -2], ">f4"),
    np.array(7, "uint8"),
    np.zeros((0, 4), "float16"),
    np.array([True, False]),
]


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def npy_with(header: bytes, body: bytes = b"", version: bytes = b"\1\0") -> bytes:
    return b"\x93NUMPY" + version + struct.pack("<H", len(header)) + header + body


def described(
    descr: str = "'<f4'", shape: str = "(2,)", more: str = "'fortran_order': False"
) -> bytes:
    return f"{{'descr': {descr}, {more}, 'shape': {shape}}}\n".encode()


def npz(arrays: dict[str, np.ndarray], **how: Any) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", **how) as archive:
        for name, array in arrays.items():
            archive.writestr(f"{name}.npy", npy(array))
    return file.getvalue()


def one(name: str, data: bytes) -> Any:
    [(feature, value)] = features(name, data)
    assert feature == name
    return value


class Exploding:
    def __reduce__(self) -> Any:
        return pytest.fail, ("something was unpickled",)


@pytest.mark.parametrize("name", ["cls", "index", "dog.cls"])
@pytest.mark.parametrize(
    ("data", "number"),
    [(b"7", 7), (b" -12\n", -12), (b"+3", 3), (b"9223372036854775807", 2**63 - 1)],
)
def test_a_class_or_an_index_is_a_whole_number(name, data, number):
    assert one(name, data) == number


@pytest.mark.parametrize(
    "data", [b"", b"cat", b"1.5", b"1_000", b"9223372036854775808", b"9" * 5000, b"\xd9\xa1"]
)
def test_what_is_no_whole_number_is_an_error(data):
    with pytest.raises(ValueError, match="expected an integer of 64 bits"):
        one("cls", data)


@pytest.mark.parametrize("array", ARRAYS, ids=lambda a: f"{a.dtype.str}{list(a.shape)}")
def test_an_npy_file_is_its_array_in_this_machines_order_and_may_be_changed(array):
    found = one("npy", npy(array))
    assert found.dtype == array.dtype.newbyteorder("=")
    assert found.dtype.isnative
    np.testing.assert_array_equal(found, array)
    assert found.flags.writeable


@pytest.mark.parametrize("how", [{}, {"compression": zipfile.ZIP_DEFLATED}])
def test_an_npz_file_is_a_feature_for_each_of_its_arrays(how):
    data = npz({"a": ARRAYS[0], "b/c": ARRAYS[1]}, **how)
    found = dict(features("emb.npz", data))
    assert list(found) == ["emb.npz/a", "emb.npz/b/c"]
    np.testing.assert_array_equal(found["emb.npz/a"], ARRAYS[0])
    np.testing.assert_array_equal(found["emb.npz/b/c"], ARRAYS[1])


@pytest.mark.parametrize("ending", PACK)
def test_what_is_compressed_is_inflated_under_its_whole_name(ending):
    pack = PACK[ending]
    assert one(f"txt.{ending}", pack(b"hello")) == b"hello"
    assert one(ending, pack(b"hel") + pack(b"lo")) == b"hello"
    assert one(f"cls.{ending}", pack(b"5")) == 5
    np.testing.assert_array_equal(one(f"a.npy.{ending}", pack(npy(ARRAYS[0]))), ARRAYS[0])


@pytest.mark.parametrize(
    "name", ["pth", "pt", "pkl", "pickle", "pyd", "model.pth", "pkl.gz", "pkl.zst"]
)
def test_a_pickle_is_refused_and_not_read(name):
    data = pickle.dumps(Exploding())
    with pytest.raises(ValueError, match="it is a pickle, which can run any code"):
        one(name, PACK.get(name.rpartition(".")[2], bytes)(data))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not a .npy file"),
        (npy(ARRAYS[0])[:-1], "47 bytes of data, expected 48 for int64"),
        (npy_with(described(shape="(1000000000000000000,)")), "0 bytes of data, expected 4000000"),
        (npy_with(described(shape="(0, 9223372036854775808)")), "its shape is (0, 92233720368"),
        (npy_with(described(), version=b"\3\0"), "version (3, 0)"),
        (npy_with(described("'|O'"), pickle.dumps(Exploding())), "Python objects"),
        (npy(np.array([Exploding()], object)), "Python objects"),
    ],
)
def test_a_hostile_npy_file_is_an_error_and_allocates_nothing(data, why):
    with pytest.raises(ValueError) as caught:
        one("npy", data)
    assert why in str(caught.value)
    assert len(str(caught.value)) < 300


def altered(data: bytes, at: int, to: bytes) -> bytes:
    """Its first central directory entry with other bytes."""
    at += data.index(b"PK\1\2")
    return data[:at] + to + data[at + len(to) :]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not an .npz file"),
        (npz({"a": ARRAYS[0]})[:-30], "not an .npz file"),
        (altered(npz({"a": ARRAYS[0]}), 16, b"\0\0\0\0"), "Bad CRC-32"),
        (npz({"a": np.array([Exploding()], object)}), "Python objects"),
        (
            npz({"a": ARRAYS[0]}, compression=zipfile.ZIP_BZIP2),
            "is compressed, but not with Deflate",
        ),
        (altered(npz({"a": ARRAYS[0]}), 8, b"\1\0"), "'a' is encrypted"),
        (npz({str(n): ARRAYS[3] for n in range(1001)}), "more than 1000 arrays"),
    ],
    ids=range(7),  # not the bytes, which have the time in them
)
def test_a_hostile_npz_file_is_an_error(data, why):
    with pytest.raises(ValueError) as caught:
        dict(features("npz", data))
    assert why in str(caught.value)


def test_a_bomb_is_not_inflated_beyond_what_may_be(monkeypatch):
    monkeypatch.setattr(extensions, "LARGEST", 3 << 20)
    for ending, pack in PACK.items():
        assert len(one(f"txt.{ending}", pack(bytes(3 << 20)))) == 3 << 20
        with pytest.raises(ValueError, match="inflates to more than 3145728 bytes"):
            one(f"txt.{ending}", pack(bytes(64 << 20)))
    large = npz({"a": np.zeros(4 << 20, "uint8")}, compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(ValueError, match="more than 3145728 bytes of arrays"):
        dict(features("npz", large))
    # One that states a size that it does not have.
    with pytest.raises(ValueError, match="npz file"):
        dict(features("npz", altered(large, 24, struct.pack("<I", 1000))))


@pytest.mark.parametrize("ending", PACK)
def test_a_damaged_gz_is_an_error(ending):
    for data in (b"", b"plain", PACK[ending](b"cut short")[:-9]):
        with pytest.raises(ValueError, match=r"(GZIP|ZSTD) stream"):
            one(f"txt.{ending}", data)
