"""Ready-made step `decode_audio`: a sound file -> its samples."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import soundfile

from cachecd.sampler.transforms.pictures import encoded

_MOST_SAMPLES = 1 << 28  # a GiB of them; what a header promises is allocated at once


def decode_audio(
    record: dict[str, Any],
    feature: str,
    into: str,
    rate: int | None,
    seconds: float | None,
    mono: bool,
) -> dict[str, Any]:
    """Replaces `feature`, which holds a sound file (WAV, FLAC, Ogg, MP3 ...), by `into`: its samples,
    float32 from -1 to 1, and `rate`: samples a second, int64.

    `seconds` fixes the length: longer sounds are cut, shorter sounds end in silence. The shape is then
    [samples] for one channel and [samples, channels] for several. Without `seconds` the length varies, and
    only one channel can be stored (a ragged feature): ValueError for more. `mono`: the mean of all
    channels. ValueError if the file's rate is not `rate`: this step does not resample.
    """
    # The header first: what it promises may be larger than memory.
    with soundfile.SoundFile(io.BytesIO(encoded(record, feature))) as file:
        own_rate, channels = int(file.samplerate), int(file.channels)
        if rate is not None and own_rate != rate:
            raise ValueError(f"{feature!r} has {own_rate} samples a second, expected {rate}")
        if seconds is None and channels > 1 and not mono:
            raise ValueError(
                f"{feature!r} has {channels} channels and no fixed length: set mono, or the length "
                "of all by `seconds`"
            )
        wanted = file.frames if seconds is None else round(seconds * own_rate)
        if wanted * channels > _MOST_SAMPLES:
            raise ValueError(
                f"{feature!r} has {wanted} x {channels} samples: too many for a record"
            )
        samples = file.read(wanted, dtype="float32", always_2d=True)
    if mono or channels == 1:
        samples = samples.mean(axis=1, dtype=np.float32)
    if seconds is not None:
        fixed = np.zeros((wanted, *samples.shape[1:]), np.float32)
        fixed[: len(samples)] = samples
        samples = fixed
    rest = {name: value for name, value in record.items() if name != feature}
    return {**rest, into: samples if seconds is not None else samples.tolist(), "rate": own_rate}
