import pytest

from cachecd_client.protocol import Waiting
from cachecd_client.session.acquire import describe

MIB = 1 << 20


@pytest.mark.parametrize(
    ("have", "want", "rate", "reason", "line"),
    [
        (312 * MIB, 1024 * MIB, 95e6, "", "312 MiB of 1 GiB (30 %), 95 MB/s, ready in about 8 s"),
        (0, 100, 0.0, "", "0 B of 100 B (0 %), nothing is arriving"),
        (
            0, 10 * MIB, 0.0, "no such bucket",
            "0 B of 10 MiB (0 %), nothing is arriving (no such bucket)",
        ),
        (0, 1536 * MIB, 1e6, "", "0 B of 1.5 GiB (0 %), 1 MB/s, ready in about 27 min"),
        (0, 3 << 40, 123456789.0, "", "0 B of 3 TiB (0 %), 123 MB/s, ready in about 7.4 h"),
        (5 * MIB, 4 * MIB, 1e3, "", "5 MiB of 4 MiB (125 %), 1 kB/s, ready in about 0 s"),
        (0, 100, 1.5e9, "", "0 B of 100 B (0 %), 1.5 GB/s, ready in about 0 s"),
        (0, 0, 0.0, "cannot write a manifest", "cannot write a manifest"),
        (0, 0, 0.0, "", "not ready yet"),
        (1000 * MIB, 1023 * MIB, 1e6, "", "1000 MiB of 1023 MiB (97 %), 1 MB/s, ready in about 24 s"),
    ],
)  # fmt: skip
def test_the_line_says_how_far_how_fast_and_how_long(have, want, rate, reason, line):
    assert describe("train", Waiting("1", have, want, rate, reason)) == f"train: {line}"
