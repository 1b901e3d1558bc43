"""Format `webdataset`: tar files as others write them, and as damage leaves them."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cachecd.config import DatasetConfig
from cachecd.model import Unit
from cachecd.sampler.formats import open_format
from cachecd_client._core import decode_example, encode_example
from tests.contracts.format import Bench, FormatContract, Shard

CONFIG = {"source": {"url": "file:///nowhere", "format": "webdataset"}}
RNG = np.random.default_rng(9)
FORMATS = {"pax": tarfile.PAX_FORMAT, "gnu": tarfile.GNU_FORMAT, "ustar": tarfile.USTAR_FORMAT}
LONG = "a-very-long-folder-of-some-project/" * 4

Sample = tuple[str, dict[str, bytes]]  # key, and content by extension


def samples(unit: int) -> list[Sample]:
    """30 of them, with names of all lengths."""
    sizes = RNG.integers(0, 4000, 30)
    return [
        (
            f"{LONG if n % 3 == 0 else ''}{unit}/{n:03d}",
            {"cls": b"%d\n" % (100 * unit + n), "jpg": RNG.bytes(int(size))},
        )
        for n, size in enumerate(sizes)
    ]


def archive(members: Iterable[tuple[str, bytes] | tarfile.TarInfo], kind: str = "pax") -> bytes:
    """A tar file by the standard library, which WebDataset's own writer uses too."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=FORMATS[kind]) as writer:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                writer.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                writer.addfile(info, io.BytesIO(member[1]))
    return file.getvalue()


def packed_samples(of: Iterable[Sample], kind: str = "pax") -> bytes:
    return archive(
        ((f"{key}.{name}", body) for key, files in of for name, body in files.items()), kind
    )


def encoded(sample: Sample) -> bytes:
    key, files = sample
    return encode_example({"__key__": key.encode(), "cls": int(files["cls"]), "jpg": files["jpg"]})


def decoded(shard: Shard) -> list[dict[str, Any]]:
    return [
        {name: values[0] for name, (_, values) in decode_example(record).items()}
        for _, _, record in shard.records
    ]


def header(
    name: bytes, length: int, *, kind: bytes = b"0", size: bytes = b"", sign: bool = False
) -> bytes:
    """A header by hand, of no dialect: name, size, type and checksum."""
    block = name.ljust(124, b"\0") + (size or b"%011o\0" % length).ljust(24, b"\0")
    tail = kind + bytes(512 - 157)
    high = sum(byte > 127 for byte in block + tail) if sign else 0
    total = sum(block) + sum(tail) + 8 * 32 - 256 * high
    return block + b"%06o\0 " % total + tail


def member(name: bytes, body: bytes, **how: Any) -> bytes:
    return header(name, len(body), **how) + body + bytes(-len(body) % 512)


def pax(attributes: dict[str, str], kind: bytes = b"x") -> bytes:
    records = b""
    for key, value in attributes.items():
        length = len(key) + len(value) + 3
        length += len(str(length + len(str(length))))
        records += f"{length} {key}={value}\n".encode()
    return member(b"attributes", records, kind=kind)


HOSTILE = {
    "endless": (header(b"a.jpg", 0, size=b"7" * 11), "the member 'a.jpg' at byte 0"),
    "no number": (header(b"a.jpg", 0, size=b"12x"), "no tar header at byte 0: its size is '12x"),
    "sparse": (header(b"a.jpg", 0, kind=b"S"), "the member 'a.jpg' at byte 0 is sparse"),
    "sparse by pax": (pax({"GNU.sparse.major": "1"}) + header(b"a.jpg", 0), "is sparse"),
    "pax size": (pax({"size": "-1"}) + header(b"a.jpg", 0), "has the invalid size '-1'"),
    "pax of no length": (member(b"x", b"0 a=b\n", kind=b"x"),
        "the pax header at byte 0 is damaged"),
    "unknown": (header(b"a.jpg", 0, kind=b"?"), "is of the unknown type '?'"),
    "long name": (header(b"x", 1 << 32, kind=b"L"), "attributes of 4294967296 bytes"),
    "one name for all": (pax({"path": "a.jpg"}, b"g"), "sets the name or the size of all members"),
}  # fmt: skip

SAMPLES = [samples(unit) for unit in range(4)]


class TestWebDataset(FormatContract):
    config = CONFIG

    def objects(self) -> list[bytes]:
        return [
            packed_samples(of, form) for of, form in zip(SAMPLES, [*FORMATS, "gnu"], strict=True)
        ]

    def records(self) -> Iterator[tuple[int, int, bytes]]:
        for unit, of in enumerate(SAMPLES):
            for ordinal, sample in enumerate(of):
                yield unit, ordinal, encoded(sample)

    # --- samples

    def test_members_of_one_key_that_follow_each_other_are_one_sample(self, bench: Bench):
        members = [("a/x.JPG", b"1"), ("a/x.seg.png", b"2"), ("b.v2/x.seg.png", b"4")]
        members += [("b.v2/x.jpg", b"3"), ("./a/x.jpg", b"5"), ("./a/x.seg.png", b"")]
        [shard] = bench.pour([archive(members)])
        assert decoded(shard) == [
            {"__key__": b"a/x", "jpg": b"1", "seg.png": b"2"},
            {"__key__": b"b.v2/x", "jpg": b"3", "seg.png": b"4"},
            {"__key__": b"./a/x", "jpg": b"5", "seg.png": b""},
        ]
        assert bench.schema is not None
        assert bench.schema.names == ("__key__", "jpg", "seg.png")

    def test_what_belongs_to_no_sample_is_passed_over(self, bench: Bench):
        def special(name: str, kind: bytes) -> tarfile.TarInfo:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "elsewhere"
            return info

        kinds = [tarfile.DIRTYPE, tarfile.CHRTYPE]
        kinds += [tarfile.BLKTYPE, tarfile.FIFOTYPE]
        others = [special(f"special.{n}", kind) for n, kind in enumerate(kinds)]
        names = [".hidden.jpg", "a/.hidden.jpg", "__meta__", "__meta__/x.json", "README", "x."]
        hidden = [(name, b"?" * 700) for name in names]
        members = [*hidden, ("a.jpg", b"1"), *others, ("a.cls", b"2"), *hidden]
        [shard] = bench.pour([archive(members)])
        assert decoded(shard) == [{"__key__": b"a", "cls": 2, "jpg": b"1"}]
        assert bench.set_aside == {}

    @pytest.mark.parametrize(
        ("members", "why"),
        [
            (["k.jpg", "k.JPG"], "the sample has 'jpg' twice, again at byte 1024"),
            ([f"k.{n:04d}.jpg" for n in range(1001)], "a key ends at the first dot of the name"),
            (["k." + "x" * 256], "has a member whose extension is 'xxxxx"),
            (["k.jpg", "k.json"], "missing [], extra ['json']"),
        ],
    )
    def test_members_that_make_no_sample_cost_no_other(
        self, bench: Bench, members: list[str], why: str
    ):
        all_ = [("a.jpg", b""), *((m, b"") for m in members), ("z.jpg", b"z")]
        [shard] = bench.pour([archive(all_)])
        assert decoded(shard) == [{"__key__": b"a", "jpg": b""}, {"__key__": b"z", "jpg": b"z"}]
        assert [ordinal for _, ordinal, _ in shard.records] == [0, 2]
        assert (bench.set_aside, bench.passed) == ({}, ["0000: k"])
        assert why in bench.reasons[0]

    def test_hard_link_is_the_file_that_it_names_and_another_costs_its_sample(self, bench: Bench):
        """Also where a shard begins behind the file."""

        def link(name: str, target: str) -> tarfile.TarInfo:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.LNKTYPE, target
            return info

        long = "d" * 200
        members = [
            (f"{long}.jpg", b"first"),
            link("b.jpg", f"./{long}.jpg"),
            link("c.jpg", "b.jpg"),
        ]
        members += [("d.jpg", b"4"), link("e.jpg", "nowhere.jpg"), link("f.jpg", f"{long}.jpg")]
        symbolic = link("g.jpg", "d.jpg")
        symbolic.type = tarfile.SYMTYPE
        members.append(symbolic)
        body = archive(members)
        [shard] = bench.pour([body])
        assert [record["jpg"] for record in decoded(shard)] == [b"first"] * 3 + [b"4", b"first"]
        assert bench.passed == ["0000: e", "0000: g"]
        assert "is a hard link to 'nowhere.jpg', expected the name of a file" in bench.reasons[0]
        begin = body.index(b"d.jpg\0")
        part = Unit(0, "0000", len(body), record=3, offset=begin)
        [shard] = bench.pour_slices([part], [body])
        assert [record["jpg"] for record in decoded(shard)] == [b"4", b"first"]
        bench.passed.clear()
        [shard] = bench.pour([gzip.compress(body)])
        assert [record["__key__"] for record in decoded(shard)] == [long.encode(), b"d"]
        assert any("tar --hard-dereference" in reason for reason in bench.reasons)

    def test_names_of_any_bytes_are_keys_and_never_paths(self, bench: Bench):
        keys = [
            *("../../etc/passwd", "/etc/passwd", "a\nb", "caf\u00e9", "\u202egpj", "x" * 5000),
            "not utf-8 \udce9",
        ]
        [shard] = bench.pour([archive(((f"{key}.jpg", b"1") for key in keys), "gnu")])
        expected = [key.encode("utf-8", "surrogateescape") for key in keys]
        assert [record["__key__"] for record in decoded(shard)] == expected

    @pytest.mark.parametrize("steps", [None, ["tests.sampler.steps:twice"]])
    def test_excluded_samples_take_their_ordinals_and_are_not_skipped(self, tmp_path, steps):
        """Also a sample that cannot be used, and with a transform that makes several records of each."""
        config = DatasetConfig.model_validate({**CONFIG, "transform": steps})
        members = [(f"{key}.jpg", b"1") for key in ("a", "b", "odd", "odd", "not \udce9", "c")]
        body = archive(members, "gnu")
        unit = Unit(0, "0.tar", len(body), excluded=("b", "not \\xe9", "odd"))
        bench = Bench(open_format(config, ()), tmp_path)
        [whole] = bench.pour([body])
        assert bench.passed == ["0000: odd"]
        bench.passed.clear()
        [shard] = bench.pour_slices([unit], [body])
        named = zip(whole.records, decoded(whole), strict=True)
        assert shard.records == [row for row, record in named if record["__key__"] in b"ac"]
        assert shard.records[-1][1] == (8 if steps else 4)
        assert (bench.passed, bench.set_aside) == ([], {})
        bench.source = open_format(config, ())
        for record in range(len(whole.records) + 1):  # a stream goes on within the unit
            rest = [row for row in shard.records if row[1] >= record]
            poured = bench.pour_slices([replace(unit, record=record)], [body])
            assert [row for one in poured for row in one.records] == rest

    # --- the archive

    @pytest.mark.parametrize("known", [True, False], ids=["tar", "tar.gz"])
    def test_wherever_it_is_cut_the_unit_says_so_and_keeps_the_whole_samples_before(
        self, bench: Bench, known: bool
    ):
        of = [(f"{LONG}{n}", {"cls": b"%d" % n, "jpg": RNG.bytes(700 * n)}) for n in range(3)]
        whole = packed_samples(of, "gnu")
        with tarfile.open(fileobj=io.BytesIO(whole)) as reader:
            members = reader.getmembers()
        # A sample is whole when the headers of another one are there, or the first block of the mark.
        marked = members[-1].offset_data + members[-1].size // 512 * 512 + 1024
        ends = [*(member.offset_data for member in members[2::2]), marked]
        for length in sorted({n + more for n in range(0, marked + 512, 512) for more in (0, 511)}):
            body = whole[:length] if known else gzip.compress(whole[:length], 1)
            bench.set_aside = {}
            kept = [record for shard in bench.pour([body]) for _, _, record in shard.records]
            assert kept == [encoded(sample) for sample in of[: sum(length >= end for end in ends)]]
            if length >= marked:
                assert bench.set_aside == {}
            else:
                assert bench.set_aside[0].startswith(f"truncated: the tar ends at byte {length}, ")
                assert bench.set_aside[0].endswith("are kept") == bool(kept)

    def test_a_flipped_bit_in_a_header_is_found_with_its_offset(self, bench: Bench):
        whole = archive([("a.jpg", b"1"), ("b.jpg", b"2"), ("c.jpg", b"3")])
        for at in range(1024, 1536, 3):
            body = bytearray(whole)
            body[at] ^= 0x10
            bench.set_aside = {}
            assert (
                bench.pour([bytes(body)]) == []
            )  # whether that was a second file of a is not known
            assert bench.set_aside == {0: "no tar header at byte 1024: its checksum is wrong"}

    @pytest.mark.parametrize(
        ("body", "why"),
        [
            (b"", "truncated: the tar ends at byte 0, without its end mark"),
            (b"\0" * 1024, "it has no records"),
            (b"not a tar " * 90, "no tar header at byte 0: its checksum is wrong"),
            (b"\xfd7zXZ" * 200, "(this looks like XZ; expected tar, tar.gz or tar.zst)"),
            (b"\x28\xb5\x2f\xfd" * 200, "ZSTD stream: Unsupported frame parameter"),
        ],
    )
    def test_what_is_no_tar_is_set_aside_and_the_rest_goes_on(
        self, bench: Bench, body: bytes, why: str
    ):
        [shard] = bench.pour([body, archive([("a.jpg", b"1")])])
        assert [unit for unit, _, _ in shard.records] == [1]
        assert why in bench.set_aside[0]

    def test_what_follows_the_end_mark_is_an_error_and_never_ignored(self, bench: Bench):
        one = archive([("a.jpg", b"1")])
        [shard] = bench.pour([one + archive([("b.jpg", b"2")])])
        assert decoded(shard) == [{"__key__": b"a", "jpg": b"1"}]
        assert "the tar's end mark is at byte 1024, but more follows" in bench.set_aside[0]

    def test_one_block_of_zeros_is_an_end_mark_too(self, bench: Bench):
        [shard] = bench.pour([archive([("a.jpg", b"1")])[: 3 * 512]])
        assert decoded(shard) == [{"__key__": b"a", "jpg": b"1"}]
        assert bench.set_aside == {}

    def test_headers_of_old_and_large_archives_are_understood(self, bench: Bench):
        v7 = header(b"folder/", 0, kind=b"\0") + member(b"v7.jpg", b"1", kind=b"\0")
        signed = member("caf\u00e9.jpg".encode(), b"2", sign=True)
        base256 = header(b"g.jpg", 0, size=b"\x80" + (3).to_bytes(11, "big")) + b"333".ljust(
            512, b"\0"
        )
        volume = (
            header(b"label", 0, kind=b"V") + header(b"acl", 3, kind=b"A") + b"???".ljust(512, b"\0")
        )
        sized = (
            pax({"size": "4", "path": "p.jpg"}) + header(b"short", 0) + b"4444".ljust(512, b"\0")
        )
        comment = pax({"comment": "made by hand"}, b"g")
        [shard] = bench.pour([v7 + volume + signed + comment + base256 + sized + bytes(1024)])
        assert [(r["__key__"], r["jpg"]) for r in decoded(shard)] == [
            *((b"v7", b"1"), ("caf\u00e9".encode(), b"2"), (b"g", b"333"), (b"p", b"4444"))
        ]
        assert bench.set_aside == {}

    @pytest.mark.parametrize(("headers", "why"), HOSTILE.values(), ids=HOSTILE.keys())
    def test_hostile_headers_set_the_unit_aside_at_once(
        self, bench: Bench, headers: bytes, why: str
    ):
        for body in (headers + bytes(1024), gzip.compress(headers + bytes(1024))):
            shards = bench.pour([member(b"a.jpg", b"1") + member(b"b.jpg", b"2") + body])
            bench.set_aside = {}
            [shard] = bench.pour([body, archive([("a.jpg", b"1")])])
            assert [unit for unit, _, _ in shard.records] == [1]
            assert why in bench.set_aside[0]
            assert shards
