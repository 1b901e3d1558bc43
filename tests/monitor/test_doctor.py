"""What the doctor says for two status documents. `python -m tests.bench.doctor` injects real faults."""

from __future__ import annotations

import copy
from array import array
from dataclasses import asdict
from typing import Any

import pytest

from cachecd.daemon.status import DaemonStatus, TrainerStatus
from cachecd.executors import ExecutorStatus
from cachecd.model import StageSeconds
from cachecd.monitor.doctor import Finding, diagnose
from cachecd.monitor.history import Sample
from tests.monitor import documents
from tests.monitor.documents import dataset, lease, status

GB, SECONDS = 10**9, 5.0


def daemon(**changes: Any) -> DaemonStatus:
    values = {
        "pid": 1, "uptime_s": 100.0, "workers": 2, "offline": False, "processors": 8, "memory": 8 * GB,
        "worker_memory": GB, "connections": 32, "bandwidth": None,
    }  # fmt: skip
    return DaemonStatus(**{**values, **changes})


def document(*trainers: TrainerStatus, **changes: Any) -> dict[str, Any]:
    datasets = {"train": dataset(coverage=0.5)}
    values = {"daemon": daemon(), "datasets": datasets, "trainers": list(trainers)}
    return status(**{**values, **changes})


def trainer(**changes: Any) -> TrainerStatus:
    values = {
        "job": "train",
        "wait_share": 0.01,
        "stages_s": {},
        "memory": 8 * GB,
        "random_bytes": GB,
    }
    return documents.trainer(**{**values, **changes})


def changed(
    before: dict[str, Any], fetched: int, reason: str = "link", waited: float = 0.0,
    **stages: tuple[float, float],
) -> dict[str, Any]:  # fmt: skip
    """Returns the document some seconds later: bytes were fetched, workers waited for the reason, and
    stages took (CPU, wall) seconds."""
    after = copy.deepcopy(before)
    after["daemon"]["uptime_s"] += SECONDS
    after["cache"]["fetched_bytes"] += fetched
    after["cache"]["paused_s"] = {reason: waited}
    after["datasets"]["train"]["ingest"] = {
        name: asdict(StageSeconds(cpu, wall, 100)) for name, (cpu, wall) in stages.items()
    }
    return after


def waiting(stage: str, **changes: Any) -> TrainerStatus:
    """A trainer that waits for a stage."""
    return trainer(
        **{"wait_share": 0.6, "stages_s": {"open": 0.1, stage: 60.0}, "queue": 0.0, **changes}
    )


def first(before: dict[str, Any], after: dict[str, Any] | None = None) -> Finding:
    return diagnose(before, before if after is None else after)[0]


def test_below_a_tenth_it_is_not_data_and_nothing_else_is_said():
    found = diagnose(document(trainer()), document(trainer(), trainer(rank=1, wait_share=0.09)))
    assert [each.kind for each in found] == ["healthy"]
    assert not found[0].is_wrong
    assert "rank 1 waits most, for 9 % of the last minute" in found[0].verdict


@pytest.mark.parametrize(
    ("stage", "kind"),
    [
        ("read", "disk"), ("open", "open"), ("verify", "verify"), ("decode", "decode"), ("gil", "gil"),
        ("assemble", "assemble"), ("prepare", "prepare"), ("copy", "copy"), ("unheard of", "unheard of"),
    ],
)  # fmt: skip
def test_a_wait_is_named_by_its_stage(stage: str, kind: str):
    found = first(document(waiting(stage)))
    assert found.kind == kind
    assert found.is_wrong
    assert found.remedy


def test_the_stage_of_the_last_seconds_counts_and_not_that_of_the_whole_epoch():
    before = document(waiting("decode", stages_s={"read": 500.0, "decode": 10.0}))
    after = document(
        waiting("decode", stages_s={"read": 500.1, "decode": 14.0}), daemon=daemon(uptime_s=105.0)
    )
    assert first(before, after).kind == "decode"


def test_a_thread_that_hogs_the_gil_is_named_whether_or_not_the_loader_waits():
    hogged = document(trainer(gil_s=0.1))
    assert first(hogged).kind == "gil"
    assert first(document(waiting("open", gil_s=0.1))).kind == "gil"
    assert first(document(trainer(gil_s=0.003))).kind == "healthy"


@pytest.mark.parametrize("stage", ["read", "verify"])
def test_a_window_above_the_memory_is_named_and_not_the_disk(stage: str):
    found = first(document(waiting(stage, memory=2 * GB, random_bytes=6 * GB)))
    assert found.kind == "memory"
    assert "cache.window" in found.remedy


def test_one_rank_that_waits_while_the_others_do_not_is_named():
    rows = [waiting("read", rank=3), *(trainer(rank=n) for n in range(3))]
    found = first(document(*rows))
    assert found.kind == "rank"
    assert "train rank 3 alone" in found.verdict


def test_all_ranks_that_wait_are_not_one_slow_rank():
    assert first(document(*(waiting("read", rank=n) for n in range(4)))).kind == "disk"


def test_a_slow_transform_is_named_with_the_gain_of_one_worker_more():
    before = document(waiting("lease"))
    after = changed(before, 690_000_000, fetch=(0.5, 9.0), my_step=(9.0, 9.0))
    found = first(before, after)
    assert found.kind == "my_step"
    assert "workers 2 -> 3: 131.6 MiB/s -> 2" in found.remedy
    assert "sampler.workers" in found.remedy


def test_more_workers_than_processors_are_not_advised():
    before = document(waiting("lease"), daemon=daemon(processors=2))
    found = first(before, changed(before, 690_000_000, decode=(9.5, 9.5)))
    assert "not on this machine" in found.remedy


def test_workers_that_wait_for_bytes_are_limited_by_the_link():
    before = document(waiting("lease"))
    found = first(before, changed(before, 50_000_000, waited=4.5, fetch=(0.2, 9.0)))
    assert found.kind == "link"
    assert "sampler.connections" in found.remedy


def test_a_gain_ends_at_the_next_limit():
    before = document(waiting("lease"))
    found = first(before, changed(before, 690_000_000, waited=4.0, decode=(9.0, 9.0)))
    assert "workers 2 -> 3: 131.6 MiB/s -> 164.5 MiB/s, then link" in found.remedy


def test_workers_that_neither_compute_nor_wait_lack_processors():
    before = document(waiting("lease"))
    found = first(before, changed(before, 50_000_000, waited=1.0, decode=(2.0, 9.0)))
    assert found.kind == "contention"


def test_a_disk_that_writes_slowly_is_named():
    before = document(waiting("lease"))
    found = first(before, changed(before, 50_000_000, write=(0.5, 4.5), sync=(0.1, 4.9)))
    assert found.kind == "write"


@pytest.mark.parametrize(
    "reason",
    ["link", "throttled", "bandwidth", "room", "disk", "listing", "egress", "idle"],
)
def test_a_pause_is_named_by_its_reason(reason: str):
    before = document(waiting("lease"))
    found = first(before, changed(before, 0, reason, 4.0))
    assert found.kind == reason
    assert found.remedy


def test_a_store_that_does_not_answer_is_quoted():
    before = document(waiting("lease"))
    after = changed(before, 0, waited=4.0)
    after["datasets"]["train"]["stopped"] = "connection refused"
    assert "the store does not answer: connection refused" in diagnose(before, after)[1].verdict


def test_a_restart_between_the_two_documents_gives_no_wrong_figure():
    before = document(waiting("lease"))
    after = document(daemon=daemon(pid=2, uptime_s=1.0))
    assert first(before, after).kind == "restarted"


def test_a_daemon_without_trainers_makes_no_alarm():
    found = first(document())
    assert found.kind == "no-trainer"
    assert not found.is_wrong


def test_a_reader_that_cannot_see_the_loop_is_no_evidence():
    blind = waiting("lease", blind="TensorFlow reads ahead of the loop", wait_share=1.0)
    found = first(document(blind))
    assert found.kind == "blind"
    assert not found.is_wrong
    assert first(document(blind, trainer(rank=1))).kind == "healthy"


def test_a_restart_under_the_same_pid_is_noticed():
    after = document(daemon=daemon(uptime_s=1.0))
    assert first(document(waiting("lease")), after).kind == "restarted"


def test_figures_of_a_trainer_that_ended_do_not_count():
    assert first(document(waiting("read", age_s=30.0))).kind == "no-trainer"


def test_a_job_that_waits_for_its_first_set_is_told_what_for_and_makes_no_alarm():
    before = document(waiting("lease", first=True, wait_share=0.0))
    found = first(before, changed(before, 50_000_000, waited=4.5, fetch=(0.2, 9.0)))
    assert found.kind == "link"
    assert "waits for its first set: the link" in found.verdict
    assert not found.is_wrong


def test_what_the_daemon_reports_as_failing_comes_first():
    healthy = document(trainer(), complaints={"probing leases": "permission denied"})
    found = diagnose(healthy, healthy)
    assert [each.kind for each in found] == ["task", "healthy"]
    assert found[0].is_wrong


def test_workers_that_ended_for_lack_of_memory_are_named():
    sampler = ExecutorStatus(4, 4, 3, "it was killed: no memory was left")
    found = first(document(trainer(), sampler=sampler))
    assert found.kind == "worker-memory"
    assert "sampler.workers" in found.remedy


def test_growth_says_how_many_epochs_are_left():
    rows = waiting("read", reads_per_record=12.0)
    keys = ("dataset/train/coverage", "job/train/epoch/a", "job/val/epoch/a")
    # The job reads train and val in turn, so each epoch of train has two samples.
    epochs = [Sample(n, keys, array("d", [0.1 * (n // 2), n // 2, n % 2])) for n in range(2, 12)]
    found = next(
        each for each in diagnose(document(rows), document(rows), epochs) if each.kind == "growth"
    )
    assert "50.0 % of the source" in found.verdict
    assert "each record was read 12.0 times on average" in found.evidence
    assert found.is_wrong
    assert "about 5 more epochs until all of it was" in found.evidence


def test_a_holder_that_stays_is_named():
    stays = lease(job="old", epoch=1, age_s=9000.0, retired_bytes=20 * GB)
    found = diagnose(*[document(waiting("read"), leases=[stays])] * 2)
    assert any(each.kind == "holder" and "old epoch 1" in each.verdict for each in found)


def test_a_pinned_set_that_cannot_be_whole_is_named():
    datasets = {"train": dataset(pinned=True, full=True)}
    found = diagnose(*[document(waiting("read"), datasets=datasets)] * 2)
    assert any(each.kind == "pinned" for each in found)
