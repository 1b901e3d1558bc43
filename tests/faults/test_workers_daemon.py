"""A daemon whose transform is hostile: what it does costs its units, and the daemon says so."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from cachecd_client.errors import AcquireTimeoutError
from tests.e2e.daemons import Daemon, file_source, wait_until

FINE = 60
HARM = {
    "010": b"segfault",
    "020": b"exit 3",
    "030": b"raise error",
    "050": b"stuck-in-c",
    "051": b"write-everywhere",
    "052": b"write-to-pipes",
}


def daemon(folder: Path, transform: str) -> Daemon:
    source = {"url": f"file://{folder}/source", "format": "files"}
    train = {"source": source, "transform": transform}
    return Daemon(
        folder,
        {"train": train},
        {"NOTES": str(folder)},
        shard_size="64KiB",
        sampler={"workers": 2, "unit_timeout": "1s", "memory": "1GiB", "path": ["."]},
    )


def test_hostile_units_are_set_aside_after_two_tries_and_all_others_are_there(tmp_path: Path):
    fine = {f"{number:03d}": b"fine " + bytes(2000) for number in range(FINE)}
    file_source(tmp_path / "source", fine | HARM)
    with daemon(tmp_path, "tests.faults.deeds:do") as served:
        served.start()
        wait_until(lambda: served.train["whole"], 60)
        status = served.status()
        train, sampler = status["datasets"]["train"], status["sampler"]
        assert train["records"] == FINE - len(HARM)
        assert train["skipped"]["units"] == len(HARM)
        reasons = {
            key: reason
            for reason, about in train["skipped"]["reasons"].items()
            for key in about["examples"]
        }
        assert reasons.pop("030").startswith("tests.faults.deeds:do raised ValueError: no good (")
        assert "the shard's descriptor was written to" in reasons.pop("051")
        running = " while tests.faults.deeds:do was running"
        assert all(reason.endswith(running) for reason in reasons.values())
        assert {key: reason.removesuffix(running) for key, reason in reasons.items()} == {
            "010": "sampler process was killed by SIGSEGV",
            "020": "sampler process exited with status 3",
            "050": "sampler process was silent for 1 s (does a transform hang? "
            "sampler.unit_timeout) and was killed by SIGKILL",
            "052": "sampler process wrote something that is not a message (does a transform write to its "
            "pipe?) and was killed by SIGKILL",
        }
        # Silence may pass: a supplement tries those units once more.
        wait_until(lambda: served.status()["cache"]["reserved"] == 0)
        assert train["stopped"] == ""
        assert served.temporaries() == []
        assert sampler["restarts"] >= 2 * 5, "two tries each, but for what raised"
        wait_until(lambda: served.status()["sampler"]["alive"] == sampler["workers"] == 2)
        assert "sampler process" in sampler["last_end"]
        said = served.said()
        assert said.count("skipped") >= len(HARM)
        assert said.count("sampler process replaced") >= 2 * 5


def test_a_crash_loop_backs_off_shows_in_status_and_ends_when_its_reason_does(tmp_path: Path):
    file_source(tmp_path / "source", {f"{number}": b"x" for number in range(10)})
    module = tmp_path / "crashing.py"
    module.write_text("import os\nos.abort()\n")
    with daemon(tmp_path, "crashing:step") as served:
        served.start()
        wait_until(lambda: served.status()["sampler"]["restarts"] >= 6)
        status = served.status()
        assert status["sampler"]["last_end"] == (
            "sampler process was killed by SIGABRT while the import of crashing:step was running"
        )
        assert "was killed by SIGABRT" in status["datasets"]["train"]["stopped"]
        assert status["datasets"]["train"]["skipped"]["units"] == 0, "no unit is to blame"
        restarts = served.status()["sampler"]["restarts"]
        module.write_text("def step(record):\n    return record\n")
        os.utime(module, (1, 1))  # Python's cache goes by the second
        wait_until(lambda: served.train["whole"], 60)
        train = served.train
        assert (train["records"], train["stopped"]) == (10, "")
        assert served.status()["sampler"]["restarts"] <= restarts + 4


LEAKY = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
kept = []
def step(record):
    if any(value[:4] == b"leak" for value in record.values()):
        kept.append(open("/dev/null"))
    return record
"""


def test_transform_that_leaks_descriptors_costs_processes_and_no_unit(tmp_path: Path):
    file_source(tmp_path / "source", {f"{n:04d}": b"leak" + bytes(500) for n in range(1000)})
    (tmp_path / "leaky.py").write_text(LEAKY)
    with daemon(tmp_path, "leaky:step") as served:
        served.start()
        served.until_whole()
        assert (served.train["records"], served.train["skipped"]["units"]) == (1000, 0)
        assert served.status()["sampler"]["restarts"] >= 3
        assert "source of train fails" not in served.said()


def test_unit_that_takes_all_descriptors_is_skipped_the_third_time(tmp_path: Path):
    (tmp_path / "source").mkdir()
    for name, samples in {**{f"fine{n}": 100 for n in range(9)}, "leaky": 1000}.items():
        with tarfile.open(tmp_path / "source" / f"{name}.tar", "w") as archive:
            for number in range(samples):
                body = name[:4].encode() + bytes(300)
                about = tarfile.TarInfo(f"{name}-{number:04d}.bin")
                about.size = len(body)
                archive.addfile(about, io.BytesIO(body))
    (tmp_path / "leaky.py").write_text(LEAKY)
    with daemon(tmp_path, "leaky:step") as served:
        served.document["datasets"]["train"]["source"]["format"] = "webdataset"
        served.document["cache"]["shard_size"] = "1MiB"  # more of its records than descriptors
        served.start()
        served.until_whole()
        [(key, reason)] = served.skipped().items()
        assert key == "leaky.tar"
        assert "256 of 256 descriptors are open; does leaky:step leak?" in reason
        assert 900 <= served.train["records"] < 900 + 256
        assert served.said().count('"unit": "leaky.tar"') >= 3


def test_workers_that_never_start_are_named_in_the_log_and_to_the_trainer(tmp_path: Path):
    file_source(tmp_path / "source", {"000": b"fine"})
    with daemon(tmp_path, "tests.faults.deeds:do") as served:
        served.document["sampler"]["python"] = "/bin/false"
        served.start()
        wait_until(lambda: "the work on train fails" in served.log.read_text(), 10)
        with served.connect() as cache, pytest.raises(AcquireTimeoutError) as raised:
            cache.acquire("train", timeout=1)
    assert "Check sampler.python" in str(raised.value)
