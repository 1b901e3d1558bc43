"""A source that only the user's code can read: listed and read by it, in processes of its own."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.daemons import alive, descendants, file_source, wait_until
from tests.e2e.reading import rows

READER = """
import json, sys
from pathlib import Path
import numpy as np

class Recordings:
    def __init__(self, rate):
        self.rate = rate
    def units(self):
        return json.loads(Path("units.json").read_text())
    def read(self, unit, store):
        if unit == "bad":
            raise ValueError("a torn tape")
        for second in range(len(store.get("tape-" + unit))):
            yield {"unit": int(unit), "second": second, "wave": np.full(self.rate, second, np.int16)}
"""


def test_the_users_class_is_the_source_and_new_units_follow_at_the_next_start(daemon, tmp_path):
    tapes = tmp_path / "tapes"
    lengths = {str(n): 5 + 20 * (n % 4) for n in range(12)}
    file_source(tapes, {f"tape-{name}": bytes(seconds) for name, seconds in lengths.items()})
    source = {
        "format": "python",
        "reader": "recordings:Recordings",
        "url": f"file://{tapes}",
        "options": {"rate": 3000},  # so that units of 5 to 65 records are a half to six shards
    }
    served = daemon({"train": {"source": source, "grow": {"first": "1MiB"}}}, shard_size="64KiB")

    def cached(names: list[str]) -> None:
        [reason] = served.skipped().values()
        place = f"{served.folder / 'recordings.py'}:13"
        why = f"recordings:Recordings.read raised ValueError: a torn tape ({place})"
        assert why.startswith(reason)
        assert len(reason) > 100
        with served.connect() as cache, cache.acquire("train", timeout=30) as epoch:
            found = [(int(unit), int(second)) for unit, second in rows(epoch, "unit", "second")]
        assert sorted(found) == [
            (u, s) for u in sorted(map(int, names)) for s in range(lengths[str(u)])
        ]

    def whole(units: int) -> bool:
        status = served.train
        return bool(status["whole"]) and status["units"] == units

    (served.folder / "recordings.py").write_text(READER)
    listed = served.folder / "units.json"
    listed.write_text('["0", "1", "2", "3", "4", "bad", {"name": "5", "size": 200000}]')
    served.start()
    wait_until(lambda: whole(7), what="all is cached")
    cached(["0", "1", "2", "3", "4", "5"])
    assert served.terminate() == 0

    listed.write_text('["0", "1", "2", "3", "4", "bad", "5", "6", "7", "8", "9", "10", "11"]')
    served.start()
    wait_until(lambda: whole(13), what="more")
    cached([str(n) for n in range(12)])
    processes = descendants(served.pid)
    names = [Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[2] for pid in processes]
    assert b"cachecd.units.lister" not in names, "it ends with the listing"
    assert served.terminate() == 0
    assert not any(map(alive, processes))
