"""A source of TFRecord files that TensorFlow wrote: carried verbatim, and read back by all three."""

from __future__ import annotations

from tests.e2e.conftest import tensorflow_file, upload
from tests.e2e.reading import by_numpy, by_tensorflow, by_torch
from tests.frameworks import tf


def test_what_tensorflow_wrote_is_carried_verbatim_and_a_corrupt_object_costs_itself(
    daemon, s3, tfrecords, tmp_path
):
    path = tmp_path / "broken.tfrecord"
    records, meant = tensorflow_file(path, 99)
    before = 50
    begin = sum(16 + len(record) for record in records[:before])
    body = bytearray(path.read_bytes())
    body[begin + 20] ^= 1  # in the payload of the next record
    objects = {**tfrecords.files, path.name: bytes(body), "readme.tfrecord": b"not a record " * 9}
    upload(s3, "tfrecords", {f"mixed/{name}": content for name, content in objects.items()})
    source = {"url": "s3://tfrecords/mixed", "format": "tfrecord"}
    served = daemon({"train": {"source": source, "grow": {"first": "1MiB"}}}).start()
    served.until_whole()

    # Nothing but what follows the damage is lost, and the status says where.
    reasons = served.skipped()
    assert reasons.keys() == {"broken.tfrecord", "readme.tfrecord"}
    assert f"corrupt record at byte {begin}" in reasons["broken.tfrecord"]
    assert "corrupt record at byte 0" in reasons["readme.tfrecord"]

    expected = tfrecords.meant | dict(list(meant.items())[:before])
    with served.connect() as cache, cache.acquire("train", timeout=30) as epoch:
        raw = [record.numpy() for record in tf.data.TFRecordDataset(epoch.files)]
        assert sorted(raw) == sorted(tfrecords.serialized + records[:before])
        assert by_numpy(epoch) == expected
        assert by_torch(epoch) == expected
        assert by_tensorflow(epoch) == expected
