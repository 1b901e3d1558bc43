"""Makes the corpus of the fuzz targets: `python -m tests.core.fuzz.make_corpus [FOLDER]`.

Whole inputs of every kind and each way of damage that has a branch of its own in the core. Files
named `found-*` are not made here: a fuzzer found them, and they stay as they are.
"""

from __future__ import annotations

import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

from tests.core.fuzz.jpegs import JPEGS
from tests.core.pictures import chunk
from tests.core.shards import entry, field, slow_frame, slow_mask, slow_sidecar, varint, wire

FOLDER = Path(__file__).parent / "corpus"

Corpus = Iterator[tuple[str, bytes]]


def int64s(*values: int, packed: bool = True) -> bytes:
    numbers = [varint(value) for value in values]
    if packed:
        return field(3, field(1, b"".join(numbers)))
    return field(3, b"".join(varint(1 << 3) + number for number in numbers))


def floats(*values: float, packed: bool = True) -> bytes:
    numbers = [struct.pack("<f", value) for value in values]
    if packed:
        return field(2, field(1, b"".join(numbers)))
    return field(2, b"".join(varint(1 << 3 | 5) + number for number in numbers))


def texts(*values: bytes) -> bytes:
    return field(1, b"".join(field(1, value) for value in values))


def plain(number: int) -> bytes:
    """A record of the schema that the target `reader` has."""
    return wire(
        entry("label", int64s(number)),
        entry("list", int64s(*[number] * (number % 3))),
        entry("name", texts(f"record {number}".encode())),
    )


def image(number: int) -> bytes:
    """What the target `reader` can have beside: large enough to be copied while it is verified."""
    return wire(entry("image", texts(bytes([number]) * 4100)))


def sidecar(frames: list[bytes], meta: bytes = b"{}", **changes: int) -> bytes:
    """The sidecar of a file of these frames; `changes`: header fields, CRCs right all the same."""
    offsets = [sum(map(len, frames[:number])) for number in range(len(frames))]
    count = len(frames)
    return slow_sidecar(
        meta,
        sum(map(len, frames)),
        [(7, b"key", 0, b"etag")],
        offsets,
        [0] * count,
        list(range(count)),
        **changes,
    )


def header(length: int) -> bytes:
    """A frame's header, whose CRC is right whatever the length."""
    packed = struct.pack("<Q", length)
    return packed + slow_mask(packed)


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at:][1:]


def framing() -> Corpus:
    three = b"".join(slow_frame(body) for body in (b"one", b"", b"three" * 9))
    yield "empty", b""
    yield "one-empty-record", slow_frame(b"")
    yield "three", three
    yield "many-of-a-byte", slow_frame(b"x") * 40
    yield "blocks", b"".join(slow_frame(bytes([number]) * 3000) for number in range(4))
    yield "cut-in-header", three[:7]
    yield "cut-in-payload", three[:-9]
    yield "cut-in-footer", three[:-2]
    yield "length-flipped", flipped(three, 0)
    yield "length-crc-flipped", flipped(three, 9)
    yield "payload-flipped", flipped(three, 13)
    yield "payload-crc-flipped", flipped(three, 16)
    yield "second-flipped", flipped(three, 40)
    for number, length in enumerate((2**64 - 1, 2**64 - 16, 2**63, 2**40, 49)):
        yield f"length-{number}-too-large", three + header(length) + b"\0" * 48
    for number, length in enumerate((2**64 - 1, 2**64 - 4, 0)):
        yield f"header-{number}-alone", three + header(length) + b"\0" * number
    yield "gzip", b"\x1f\x8b\x08\0" + b"\0" * 20
    yield "zlib", b"\x78\x9c" + b"\0" * 20
    yield "frame-within-a-frame", slow_frame(three)


def example() -> Corpus:
    """Examples of every kind of list, and what only hostile writers make."""
    wide = wire(
        entry("label", int64s(-1)),
        entry("list", int64s(1, 300, 2**62)),
        entry("vector", floats(1.0, -0.0, float("inf"))),
        entry("floats", floats(float("nan"))),
        entry("name", texts(b"a name")),
        entry("pair", texts(b"", b"second")),
        entry("image", texts(bytes(range(8)))),
    )
    yield "empty", b""
    yield "wide", wide
    yield "unpacked", wire(entry("a", int64s(1, 2, 3, packed=False)),
                             entry("b", floats(1.0, 2.0, packed=False)))  # fmt: skip
    yield (
        "mixed-packing",
        wire(entry("a", field(3, varint(8) + varint(5) + field(1, varint(6) + varint(7))))),
    )
    yield "lists-merged", wire(entry("a", int64s(1) + int64s(2, 3)))
    yield "kinds-in-turn", wire(entry("a", int64s(1) + texts(b"x") + floats(2.0) + int64s(9)))
    yield "no-value", wire(field(1, field(1, b"a")))
    yield "no-name", wire(field(1, field(2, int64s(1))))
    yield "no-kind", wire(entry("a", b""))
    yield "two-values", wire(field(1, field(1, b"a") + field(2, int64s(1)) + field(2, int64s(2))))
    yield "twice-one-name", wire(entry("a", int64s(1)), entry("a", texts(b"x")))
    yield "two-maps", wire(entry("a", int64s(1))) + wire(entry("b", int64s(2)))
    yield "unknown-fields", b"\x10\x05" + b"\x19" + b"\0" * 8 + b"\x25" + b"\0" * 4 + plain(1)
    yield "a-group", b"\x2b\x08\x01\x33\x34\x2c" + plain(2)
    yield "deep-groups", b"\x2b" * 120 + b"\x2c" * 120
    yield "group-left-open", b"\x2b\x08\x01"
    yield "group-not-begun", b"\x2c"
    yield "length-beyond", b"\x0a\x7f" + plain(3)
    yield "length-huge", b"\x0a" + varint(2**63) + plain(3)
    yield "varint-too-long", b"\x08" + b"\xff" * 10 + b"\x01"
    yield "varint-of-ten", wire(entry("a", field(3, b"\x08" + b"\xff" * 9 + b"\x7f")))
    yield "varint-cut", wire(entry("a", field(3, field(1, b"\xff\xff"))))
    yield "floats-cut", wire(entry("a", field(2, field(1, b"\0\0\0\0\0\0"))))
    yield "field-0", b"\x02\x00"
    yield "tag-too-large", varint(2**35) + b"\0"
    yield "long-list", wire(entry("list", int64s(*range(2000))))
    widths = [2**bit for bit in range(63)] + [-1, -(2**63)]
    yield "of-all-widths", wire(entry("list", int64s(*widths, *widths[::-1])))
    yield "classes", wire(*(entry(str(number), int64s(number)) for number in (2, 3, 399, -1)))
    yield "small-arrays", wire(*(entry(str(byte), texts(bytes([byte]))) for byte in (6, 7, 255)))
    yield "no-numbers", wire(entry("a", int64s()), entry("b", floats()), entry("c", texts()))
    yield "large", wire(entry("large", texts(bytes(range(208)) * 20)))


def sidecars() -> Corpus:
    frames = [slow_frame(plain(number)) for number in range(5)]
    good = sidecar(frames)
    yield "empty", b""
    yield "no-records", sidecar([])
    yield "five", good
    yield "long-meta", sidecar(frames, meta=b'{"a": "' + b"b" * 500 + b'"}')
    yield "magic", flipped(good, 0)
    yield "version", sidecar(frames, version=1)
    yield "cut", good[:-3]
    yield "longer", good + b"\0"
    for name, at in (
        ("header", 20),
        ("meta", 52),
        ("units", 70),
        ("offsets", 95),
        ("indices", 140),
        ("crc", -1),
    ):
        yield f"{name}-flipped", flipped(good, at % len(good))
    for number, records in enumerate((2**64 - 1, 2**64 // 16, 2**63, 2**61, 6, 4)):
        yield f"records-{number}-wrong", sidecar(frames, records=records)
    yield "data-too-short", sidecar(frames, data_bytes=40)
    yield "data-huge", sidecar(frames, data_bytes=2**64 - 1)
    yield "data-without-records", sidecar([], data_bytes=100)


def reader() -> Corpus:
    """A data file, a sidecar and how to read them: see reader.cc."""
    frames = [slow_frame(plain(number)) for number in range(9)]
    data, index = b"".join(frames), sidecar(frames)
    shuffle, replace, tail, with_sidecar, two_threads = 1, 2, 4, 8, 16
    of_two, second, converted = 32, 64, 128
    restart, windowed = 8, 16

    def join(
        options: int, data: bytes, index: bytes = b"", batch_size: int = 4, more: int = 0
    ) -> bytes:
        options |= with_sidecar if index else 0
        return struct.pack("<BBH", options, batch_size - 1 | more, len(index)) + data + index

    everything = shuffle | replace | tail | two_threads
    yield "empty", join(tail, b"")
    yield "in-order", join(tail, data, index)
    yield "shuffled", join(everything, data, index, 2)
    yield "without-sidecar", join(everything, data)
    yield "first-rank", join(everything | of_two, data, index)
    yield "second-rank", join(replace | tail | of_two | second, data, index)
    yield "drop-last", join(shuffle | replace, data, index)
    for number, at in enumerate((5, 14, len(data) // 2, len(data) - 1)):
        yield f"flipped-{number}-replaced", join(everything, flipped(data, at), index)
        yield f"flipped-{number}-raised", join(tail, flipped(data, at), index)
        yield f"flipped-{number}-without-sidecar", join(everything, flipped(data, at))
    spoilt = b"".join(flipped(frame, len(frame) - 1) for frame in frames)
    yield "all-spoilt", join(everything, spoilt, index)
    yield "cut", join(everything, data[:-20], index)
    yield "cut-raised", join(tail, data[:-20], index)
    yield "cut-without-sidecar", join(everything, data[:-20])
    yield "longer", join(everything, data + frames[0], index)
    yield "sidecar-cut", join(everything, data, index[:-1])
    yield "sidecar-flipped", join(everything, data, flipped(index, 60))
    yield "sidecar-flipped-raised", join(tail, data, flipped(index, 60))
    yield "data-huge", join(everything, data, sidecar(frames, data_bytes=2**64 - 1))
    beyond = [*frames, header(2**40) + b"\0" * 20]  # which the sidecar says, too
    data_bytes = len(data) + 2**40 + 16
    yield (
        "length-beyond-the-file",
        join(everything, b"".join(beyond), sidecar(beyond, data_bytes=data_bytes)),
    )
    # An index may point at what looks like a frame within a record.
    nested = [slow_frame(plain(1)), slow_frame(wire(entry("name", texts(frames[2]))))]
    yield "nested", join(everything, b"".join(nested), sidecar(nested))
    merged = [frames[0] + frames[1], *frames[2:]]
    yield "two-frames-as-one", join(everything, data, sidecar(merged))
    misfit = [*frames[:4], slow_frame(wire(entry("label", texts(b"no number"))))]
    yield "misfit", join(everything, b"".join(misfit), sidecar(misfit))
    yield "no-example", join(tail, slow_frame(b"\xff" * 9))
    yield "converted", join(everything | converted, data, index, more=restart)
    images = [slow_frame(plain(number) + image(number)) for number in range(2)] + frames[:2]
    pictures = b"".join(images)
    yield "images", join(tail | converted, pictures, sidecar(images), more=restart)
    for number, at in enumerate((14, len(images[0]) // 2, len(images[0]) - 1)):
        spoilt = flipped(pictures[: len(images[0]) + len(frames[0])], at)
        yield f"image-{number}-flipped", join(everything | converted, spoilt)
    yield "windowed", join(everything, data, index, 2, restart | windowed)
    for name, options in (("replaced", everything), ("raised", tail)):
        yield f"windowed-flipped-{name}", join(options, flipped(data, 14), index, 2, windowed)
        yield (
            f"windowed-sidecar-flipped-{name}",
            join(options, data, flipped(index, 60), 2, restart | windowed),
        )
        yield f"windowed-cut-{name}", join(options, data[:-20], index, 2, restart | windowed)
    lost = flipped(data, len(frames[0]) * 4)
    yield "windowed-lost", join(everything, lost, flipped(index, 60), 2, restart | windowed)
    yield (
        "windowed-nothing-left",
        join(everything, b"\0" * len(data), flipped(index, 60), 2, windowed),
    )


def small_png(
    depth: int,
    color: int,
    *chunks: bytes,
    interlaced: bool = False,
    size: tuple[int, int] = (11, 13),
) -> bytes:
    """In a block that is not compressed, so that mutations reach the rows."""
    height, width = size
    bits = depth * {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[color]
    # Each row with another filter; where rows are shorter, all without.
    rows = b"".join(
        bytes([row % 5]) + bytes(i % 256 for i in range((width * bits + 7) // 8))
        for row in range(height)
    )
    rows = bytes(600) if interlaced else rows
    stored = struct.pack("<BHH", 1, len(rows), len(rows) ^ 0xFFFF) + rows
    deflated = b"\x78\x01" + stored + struct.pack(">I", zlib.adler32(rows))
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, interlaced)
    content = [chunk(b"IHDR", header), *chunks, chunk(b"IDAT", deflated), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(content)


def pictures() -> Corpus:
    palette = chunk(b"PLTE", bytes(range(48)))
    exif = b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x05\0\0\0\0\0\0"
    files = {
        **JPEGS,
        "grey-1": small_png(1, 0),
        "grey-16": small_png(16, 0, chunk(b"tRNS", b"\0\1")),
        "rgb": small_png(8, 2, chunk(b"eXIf", exif)),
        "rgba-16": small_png(16, 6),
        "grey-alpha": small_png(8, 4),
        "palette": small_png(4, 3, palette, chunk(b"tRNS", b"\0\1")),
        "interlaced": small_png(8, 2, interlaced=True),
        "gif": b"GIF89a",
    }
    for number, (name, content) in enumerate(files.items()):
        for crop in range(3):
            flags = crop + 4 * (number % 2) + 8 * (number % 3 == 1) + 16 * (number % 3 == 2) + 224
            setting = bytes([flags, 5 + 17 * crop, 30 - 9 * crop, 11 * number, 9, 0, 0, 0])
            yield f"{name}-{crop}", setting + struct.pack("<Q", 77 * number << 30 | crop) + content
    # Results of 46 pixels, of which that at the edge has fewer.
    yield "wide", bytes([2, 5, 12, *bytes(13)]) + small_png(8, 2, size=(2, 600))


TARGETS = {
    "framing": framing,
    "example": example,
    "image": pictures,
    "sidecar": sidecars,
    "reader": reader,
}


def make(folder: Path) -> None:
    for target, inputs in TARGETS.items():
        (folder / target).mkdir(parents=True, exist_ok=True)
        for name, content in inputs():
            (folder / target / name).write_bytes(content)


if __name__ == "__main__":
    make(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
