"""What an epoch adds to a FileSet: the lease, its defaults, its reports."""

import os
import pickle
import shutil
import tempfile
from pathlib import Path

import pytest

from cachecd_client import _core, resources
from cachecd_client.errors import CallerError
from cachecd_client.lease.held_lease import HeldLease
from cachecd_client.lease.leased_set import LeasedSet
from cachecd_client.protocol import ReportCorrupt
from cachecd_client.runs.epoch import Epoch
from cachecd_client.session.cache import connect
from cachecd_client.transport import Transport
from tests.client.conftest import GENERATION, locked
from tests.client.records import labels
from tests.core.processes import in_child
from tests.core.shards import flip


@pytest.fixture
def leased(granting):
    with connect(granting.endpoint) as cache, cache.acquire("train") as found:
        yield found


@pytest.fixture
def by_hand(cache_dir, tmp_path):
    """Makes an epoch over a manifest, with nobody on the socket."""

    def make(**changes) -> Epoch:
        held = HeldLease(cache_dir.manifest(**changes))
        nobody = Transport(f"ipc://{tmp_path}/nobody.sock")
        return Epoch(LeasedSet(held, nobody, HeldLease.close, number=held.manifest.epoch))

    return make


def test_the_manifests_seed_gives_the_order(by_hand):
    with by_hand(seed=1) as one, by_hand(seed=2) as two:
        assert labels(one.numpy(batch_size=10)) == labels(one.numpy(batch_size=10, seed=1))
        assert labels(one.numpy(batch_size=10)) != labels(two.numpy(batch_size=10))
        assert labels(one.numpy(batch_size=10)) == labels(two.numpy(batch_size=10, seed=1))


def test_a_pinned_set_comes_whole_and_in_order(by_hand):
    with by_hand(pinned=True) as evaluation:
        batches = list(evaluation.numpy(batch_size=16))
        assert labels(batches) == list(range(40))
        assert [len(batch["label"]) for batch in batches] == [16, 16, 8]
        assert "_valid" not in batches[0]
        shuffled = evaluation.numpy(batch_size=16, shuffle=True, drop_last=True)
        assert len(shuffled) == 2


def test_release_ends_the_passes_of_its_loaders(leased):
    batches = iter(leased.numpy(batch_size=10))
    next(batches)
    leased.release()
    leased.release()
    with pytest.raises(CallerError, match="its lease was released"):
        next(batches)
    with pytest.raises(CallerError, match="was released, and its files may be deleted"):
        next(iter(leased.numpy(batch_size=10)))


def test_a_trainer_with_less_memory_than_the_leases_window_says_so_once(
    by_hand, monkeypatch, caplog
):
    monkeypatch.setattr("cachecd_client.runs.epoch._warned", set())
    with by_hand() as whole:
        size = whole.num_bytes
        monkeypatch.setattr(resources, "memory", lambda *_: size)
        whole.numpy(batch_size=10)
        assert not caplog.records, "it fits"
        monkeypatch.setattr(resources, "memory", lambda *_: size - 1)
        whole.numpy(batch_size=10)
        whole.numpy(batch_size=10)
        (record,) = caplog.records
        assert "set cache.window to half of the memory of the trainers" in record.getMessage()
    monkeypatch.setattr("cachecd_client.runs.epoch._warned", set())
    with by_hand(window=size // 2) as windowed:
        windowed.numpy(batch_size=10)
    assert len(caplog.records) == 1


def corrupt(path: str, index: int) -> int:
    """Flips a byte of a record; returns where its frame starts."""
    offset = int(_core.Sidecar.read(f"{path}.idx").offsets[index])
    flip(Path(path), offset + 14)
    return offset


def test_the_first_corrupt_record_of_a_shard_is_reported_and_training_goes_on(leased, granting):
    offsets = {corrupt(leased.files[1], 3), corrupt(leased.files[1], 4)}
    loader = leased.numpy(batch_size=5)
    for _ in range(2):
        found = labels(loader)
        assert len(found) == 20
        assert set(found) == set(range(20)) - {13, 14}
    reports = granting.of(ReportCorrupt)
    assert {(r.dataset, r.generation, r.shard, r.version) for r in reports} == {
        ("train", GENERATION, 1, 0)
    }
    assert {r.offset for r in reports} < offsets
    assert len(reports) == 1
    assert all("CRC" in report.why for report in reports)


def test_a_report_that_nobody_takes_holds_up_training_once(leased, granting, monkeypatch):
    monkeypatch.setattr("cachecd_client.lease.leased_set._REPORT_TIMEOUT", 0.05)
    for index in range(5):
        corrupt(leased.files[0], index)
    granting.answer = lambda request: None
    assert len(labels(leased.numpy(batch_size=5))) == 20
    assert len(granting.of(ReportCorrupt)) == 1


def test_a_pickled_epoch_reads_under_its_own_lock(leased, cache_dir):
    manifest = cache_dir.root / "leases/train-0.json"
    copy = pickle.loads(pickle.dumps(leased))
    expected = labels(leased.numpy(batch_size=10))
    loader = copy.numpy(batch_size=10)
    assert labels(loader) == expected
    leased.release()
    assert locked(manifest)
    copy.release()
    assert not locked(manifest)


def test_a_cache_that_may_only_be_read_is_enough(by_hand):
    """As a user who can write nowhere in the cache, in a child, because a test may run as root."""
    with by_hand() as original:
        root = original._sets[0].held.path.parent.parent
        transport = original._sets[0].transport
        # Where pytest keeps its folders nobody else may enter.
        public = Path(tempfile.mkdtemp())
        try:
            public.chmod(0o755)
            shutil.copytree(root, public / "cache")
            for folder, _, names in os.walk(public / "cache"):
                os.chmod(folder, 0o555)
                for name in names:
                    os.chmod(os.path.join(folder, name), 0o444)

            def read() -> list:
                if os.getuid() == 0:
                    os.setuid(65534)
                assert not os.access(public / "cache/leases", os.W_OK)
                held = HeldLease(public / "cache/leases/lease-0.json")
                there = Epoch(LeasedSet(held, transport, HeldLease.close, number=0))
                return labels(there.numpy(batch_size=10, shuffle=False))

            assert in_child(read) == list(range(40))
        finally:
            for folder, _, _ in os.walk(public):
                os.chmod(folder, 0o755)
            shutil.rmtree(public)
