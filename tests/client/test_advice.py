"""What a report says: one line, and what to do where the run waits too much."""

from dataclasses import replace

import pytest

from cachecd_client.report.summary import Waited, advice, line, waits

REPORT = {
    "dataset": "train",
    "epoch": 3,
    "steps": 1200,
    "seconds_waited": 3.0,
    "seconds_elsewhere": 97.0,
    "wait_share": 0.03,
    "seconds_leasing": 0.1,
    "stages_s": {"open": 0.5, "read": 0.2, "decode": 2.3},
    "queue": 0.64,
    "queue_p10": 0.12,
    "queue_p50": 0.71,
    "set_records": 240_000,
    "source_records": 0,
    "growth": 1.42,
    "repeated": False,
    "corrupt_records": 0,
    "skipped_records": 0,
    "dropped_records": 0,
    "lent": "",
    "advice": "",
}
MOST = Waited(30.0, 1200, 12_000_000, 100.0, threads=0, prefetch_bytes=64 << 20)


def test_a_run_that_hardly_waits_is_told_in_one_line():
    expected = (
        "epoch 3 of train: 1,200 steps, waited 3 % on data, queue 64 % full (p10 12 %, p50 71 %); "
        "the cache grew 1.4x"
    )
    assert line(REPORT) == expected
    assert advice(REPORT, MOST, 2) == ""
    of_all = "the cache grew 1.4x: 240,000 of about 700,000 records (34 %)"
    assert line({**REPORT, "source_records": 704_000}).endswith(of_all)


@pytest.mark.parametrize(
    ("growth", "said"), [(None, "the set has 240,000 records"), (0.96, "the cache shrank to 0.96x")]
)
def test_the_size_of_the_cache_is_told_against_the_set_before(growth, said):
    assert line({**REPORT, "growth": growth}).endswith(f"p50 71 %); {said}")


def test_what_went_wrong_is_told_after_it():
    report = {
        **REPORT,
        "corrupt_records": 1,
        "skipped_records": 2,
        "dropped_records": 37,
        "seconds_leasing": 12.3,
        "advice": "do this",
    }
    assert line(report) == (
        "epoch 3 of train: 1,200 steps, waited 3 % on data and 12 s for the set, queue 64 % full (p10 "
        "12 %, p50 71 %); the cache grew 1.4x; "
        "dropped 37 records in a short last batch (drop_last); 1 record corrupt; "
        "240,000 of 240,002 records, 2 skipped (see `cachecd status`); do this"
    )


WAITS = {**REPORT, "seconds_waited": 30.0, "seconds_elsewhere": 70.0, "wait_share": 0.3}


@pytest.mark.parametrize(
    ("most", "said"),
    [
        (
            replace(MOST, bytes=1200 * 5_000_000, pictures=38_000_000),
            "prefetch_bytes=67108864 holds fewer than two batches of 43000000 bytes: raise it to 172000000",
        ),
        (replace(MOST, threads=1), "threads=1 on 4 processors: raise it, or omit it"),
        (
            replace(MOST, bytes=31_000_000_000),
            "the loader read 310 MB/s, and waited mostly for stage `decode`: store smaller pictures",
        ),
    ],
)
def test_a_run_that_waits_for_batches_is_told_what_limits_them(most, said):
    assert advice(WAITS, most, 4).startswith(said)


def test_a_run_that_waits_for_its_sets_is_told_that_the_source_is_the_limit():
    late = {**REPORT, "seconds_leasing": 20.0}
    assert "the store, its link or the samplers are the limit" in advice(late, MOST, 2)


@pytest.mark.parametrize(
    "changed",
    [
        {"seconds_waited": 0.9, "seconds_elsewhere": 0.1, "wait_share": 0.9},  # nobody misses them
        {"seconds_waited": 9.0, "seconds_elsewhere": 91.0, "wait_share": 0.09},  # a small share
    ],
)
def test_waiting_that_is_short_or_a_small_part_asks_for_no_advice(changed):
    assert advice({**REPORT, **changed}, MOST, 2) == ""


def test_two_passes_that_wait_at_a_time_waited_for_at_most_the_whole_time():
    assert "waited for data for 100 % of the last 60 s" in waits(
        {"read": 150.0, "lease": 30.0}, 60.0
    )
