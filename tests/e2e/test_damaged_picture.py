"""A picture that cannot be decoded, in a shard whose bytes are right."""

from __future__ import annotations

from cachecd_client import Image
from tests.client.test_decode import encoded, picture
from tests.e2e.daemons import file_source


def test_a_damaged_picture_is_replaced_and_its_shard_not_reported(daemon, tmp_path):
    bodies = {f"{n:03d}.jpg": encoded(picture(n)) for n in range(40)}
    bodies["007.jpg"] = bodies["007.jpg"][:500]
    source = file_source(tmp_path / "pictures", bodies)
    served = daemon({"train": {"source": source, "grow": {"first": "64KiB"}}}, shard_size="64KiB")
    served.start().until_whole()
    with served.connect() as cache, cache.acquire("train") as epoch:
        loader = epoch.torch(10, decode={"payload": Image(16)}, features=["payload", "key"])
        keys = [bytes(key) for batch in loader for key in batch["key"]]
        assert [why[:9] for *_, why in loader.corrupt] == ["picture: "]
    assert len(keys) == 40
    assert len(set(keys)) == 39
    assert not any(b"007.jpg" in key for key in keys)
    assert served.status()["cache"]["corrupt_shards"] == 0
    assert "corrupt record reported" not in served.said()
