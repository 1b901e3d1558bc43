"""Ready-made step `decode_audio`: decodes a sound file into samples."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import soundfile

from cachecd.sampler.transforms.pictures import encoded

_MOST_SAMPLES = 1 << 28  # 1 GiB: the decoder allocates the samples that the header names


def decode_audio(
    record: dict[str, Any],
    feature: str,
    into: str,
    rate: int | None,
    seconds: float | None,
    mono: bool,
) -> dict[str, Any]:
    """Replaces `feature`, a sound file (WAV, FLAC, Ogg, MP3 ...), with `into`, the samples as float32 from
    -1 to 1. Adds `rate`, the samples per second, int64.

    With `seconds`, the length is fixed: longer sounds are cut, and shorter sounds end in silence. The shape
    is [samples] for one channel and [samples, channels] for several. Without `seconds`, the length varies
    (a ragged feature): ValueError for more than one channel. `mono`: the mean of all channels. ValueError
    for missing samples, and if the file's rate is not `rate`: nothing is resampled.
    """
    # Check the header first: it may name more samples than memory can hold.
    with soundfile.SoundFile(io.BytesIO(_closed(bytes(encoded(record, feature))))) as file:
        own_rate, channels = int(file.samplerate), int(file.channels)
        if rate is not None and own_rate != rate:
            raise ValueError(f"{feature!r} has {own_rate} samples per second, expected {rate}")
        if seconds is None and channels > 1 and not mono:
            raise ValueError(
                f"{feature!r} has {channels} channels and no fixed length: set `mono`, or set `seconds` "
                "so that all have one length"
            )
        wanted = file.frames if seconds is None else round(seconds * own_rate)
        if wanted * channels > _MOST_SAMPLES:
            raise ValueError(f"{feature!r}: {wanted} x {channels} samples, too many for a record")
        samples = file.read(wanted, dtype="float32", always_2d=True)
        if len(samples) < (min(wanted, file.frames) or 1):
            raise ValueError(f"{feature!r} ends after {len(samples)} of {file.frames} samples")
    if mono or channels == 1:
        samples = samples.mean(axis=1, dtype=np.float32)
    if seconds is not None:
        silence = np.zeros((wanted - len(samples), *samples.shape[1:]), np.float32)
        samples = np.concatenate([samples, silence])
    rest = {name: value for name, value in record.items() if name != feature}
    return {**rest, into: samples if seconds is not None else samples.tolist(), "rate": own_rate}


def _closed(body: bytes) -> bytes:
    """Returns the sound file; a WAV that was piped gets the missing size. ValueError if a WAV is
    truncated."""
    if body[:4] != b"RIFF" or body[8:12] != b"WAVE":
        return body
    name, at, size = b"", 12, 0
    while name != b"data" and at < len(body):
        at += size + size % 2 + 8
        name, size = body[at - 8 : at - 4], int.from_bytes(body[at - 4 : at], "little")
    if size == 0 and int.from_bytes(body[4:8], "little") != len(body) - 8:
        return body[: at - 4] + b"\xff" * 4 + body[at:]
    if (
        name == b"data" and len(body) - at < size < 0x7FFFF000
    ):  # 0x7FFFF000 or more: sox writes it to a pipe
        raise ValueError(f"the WAV ends after {len(body) - at} of {size} bytes of samples")
    return body
