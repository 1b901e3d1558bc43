"""The history of the status document: its rings, its file, and its JSON."""

from __future__ import annotations

import json
import math
from copy import deepcopy

import pytest

from cachecd.monitor.history import MOST_BYTES, History
from tests.monitor.documents import busy, lease, status, trainer

T0 = 1_800_000_000.0
QUEUE = "job/train/queue/resnet"


def series(history, ring, key):
    """The values of one series; None where a sample lacks it."""
    return [dict(zip(s.keys, s.values, strict=True)).get(key) for s in history.samples(ring)]


def filled(seconds, document=None, begin=T0):
    history = History()
    for second in range(seconds):
        history.add(document or status(), begin + second)
    return history


def test_ten_minutes_of_seconds_and_two_days_of_minutes_are_kept():
    history = History()
    document = status()
    for minute in range(3000):
        history.add(document, T0 + 60 * minute)
    assert len(history.samples("seconds")) == 600
    assert len(history.samples("minutes")) == 2880
    assert history.samples("minutes")[-1].time == T0 + 60 * 2999


def test_minute_has_one_sample():
    history = filled(181)
    assert [each.time - T0 for each in history.samples("minutes")] == [0, 60, 120, 180]
    assert len(history.samples("seconds")) == 181


def test_dip_of_a_queue_within_a_minute_stays_in_its_sample():
    history = History()
    for second in range(121):
        queue = 0.02 if second == 90 else 0.8
        document = status(leases=[lease()], trainers=[trainer(queue=queue), trainer(pid=2)])
        history.add(document, T0 + second)
    assert series(history, "minutes", QUEUE) == [0.75, 0.75, 0.02]
    assert series(history, "seconds", QUEUE)[90] == 0.02


def test_jobs_that_change_places_share_their_keys():
    history, document = History(), busy()
    for second in range(60):
        for rows in ("trainers", "leases"):
            document[rows] = document[rows][1:] + document[rows][:1]
        history.add(document, T0 + second)
    assert len({id(each.keys) for each in history.samples("seconds")}) == 1


def test_job_is_shown_by_its_worst_process():
    history = filled(1, busy())
    assert series(history, "seconds", "job/train/wait_share/resnet") == [0.42]
    assert series(history, "seconds", QUEUE) == [0.03]


def test_reader_without_a_queue_has_no_fill():
    document = status(leases=[lease()], trainers=[trainer(queue=None)])
    [fill] = series(filled(1, document), "seconds", QUEUE)
    assert math.isnan(fill)
    [row] = json.loads(b"".join(filled(1, document).text()))["seconds"][0]["rows"]
    assert None in row


def test_each_epoch_of_a_job_has_one_sample():
    history = History()
    for second in range(40):
        epochs = [lease(epoch=second // 10)]
        if second % 10 == 9:  # the next epoch begins before the last lease ends
            epochs.append(lease("train.2", epoch=second // 10 + 1))
        history.add(status(leases=epochs), T0 + second)
    assert series(history, "epochs", "job/train/epoch/resnet") == [0, 1, 2, 3, 4]


def test_samples_without_their_job_continue():
    history = History()
    history.add(busy(), T0)
    history.add(status(), T0 + 1)
    assert series(history, "seconds", QUEUE) == [0.03, None]


def restored(history, now=T0 + 1e6):
    return History.decode(history.encode(), now)


def test_restart_continues_the_history():
    before = filled(130, busy())
    after = restored(before)
    for ring in ("seconds", "minutes", "epochs"):
        assert str(after.samples(ring)) == str(before.samples(ring))
    after.add(busy(), T0 + 150)
    assert len(after.samples("minutes")) == len(before.samples("minutes"))
    assert len(after.samples("epochs")) == 1, "the epoch had begun before the restart"


def test_samples_later_than_now_are_dropped():
    """The clock was set back while no daemon ran."""
    after = restored(filled(130), now=T0 + 50)
    assert after.samples("seconds")[-1].time == T0 + 50
    after.add(status(), T0 + 61)
    assert [each.time - T0 for each in after.samples("minutes")] == [0, 61]


def changing(seconds):
    """A busy cache whose figures change, with 60 datasets: more series than a sample has."""
    document = busy()
    one = document["datasets"]["train"]
    history = History()
    for second in range(seconds):
        document["datasets"] = {
            f"d{n}": {**one, "records": second * n, "bytes_per_second": (second * 7919) % (n + 1e6)}
            for n in range(60)
        }
        history.add(deepcopy(document), T0 + 60 * second)
    return history


def test_series_and_memory_are_bounded():
    history = changing(3)
    assert {len(each.keys) for each in history.samples("seconds")} == {512}


def test_file_is_small_enough_and_lacks_the_oldest_samples():
    history = changing(300)
    assert len(history.encode()) <= MOST_BYTES
    most = len(history.encode()) // 4
    small = history.encode(most)
    assert 0 < len(small) <= most
    kept = History.decode(small, T0 + 1e9)
    assert kept.samples("minutes")[-1] == history.samples("minutes")[-1]
    assert 0 < len(kept.samples("minutes")) < 300


@pytest.mark.parametrize("cut", [0, 5, 20, 40, -1])
def test_cut_file_is_refused(cut):
    with pytest.raises(ValueError, match=r"digest|expected"):
        History.decode(filled(3).encode()[:cut], T0 + 1e9)


def test_changed_byte_is_refused():
    content = bytearray(filled(3).encode())
    content[-3] ^= 1
    with pytest.raises(ValueError, match="digest"):
        History.decode(bytes(content), T0 + 1e9)


def test_text_has_only_samples_after_the_given_time():
    text = json.loads(b"".join(filled(10, busy()).text(T0 + 6)))
    [run] = text["seconds"]
    assert [row[0] - T0 for row in run["rows"]] == [7, 8, 9]
    assert len(run["keys"]) + 1 == len(run["rows"][0])
    assert text["minutes"] == text["epochs"] == []
