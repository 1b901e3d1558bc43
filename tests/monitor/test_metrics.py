"""The text of /metrics, read back by the parser of Prometheus' own client."""

from __future__ import annotations

import re
import shutil
import subprocess
from copy import deepcopy
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cachecd.monitor import metrics
from cachecd.monitor.metrics import TrainerTotals, render
from tests.monitor.documents import GIB, busy, lease, status, trainer


def rendered(*documents):
    totals = TrainerTotals()
    for document in documents:
        totals.add(document)
    return render(documents[-1], totals).decode()


def parsed(*documents):
    """(name, labels) -> value of each series, labels without their names."""
    families = text_string_to_metric_families(rendered(*documents))
    samples = [sample for family in families for sample in family.samples]
    series = {(s.name, *s.labels.values()): s.value for s in samples}
    assert len(series) == len(samples), "a series occurs twice"
    return series


def test_figures_of_the_document_are_in_the_metrics():
    series = parsed(busy())
    assert series["cachecd_cache_limit_bytes",] == 100 * GIB
    assert series["cachecd_fetched_bytes_total",] == 1_000_000
    assert series["cachecd_cache_fetched_bytes",] == 412_000_000_000
    assert series["cachecd_dataset_coverage_ratio", "train"] == 0.61
    assert series["cachecd_dataset_evicted_shards_total", "train"] == 640
    assert series["cachecd_ingest_stage_seconds_total", "train", "decode"] == 900
    assert series["cachecd_ingest_stage_wall_seconds_total", "train", "fetch"] == 2400
    assert series["cachecd_ingest_paused_seconds_total", "room"] == 1800
    assert series["cachecd_dataset_skipped_units_total", "train"] == 12
    assert series["cachecd_leases", "train", "held"] == 2
    assert series["cachecd_leases", "train-eval", "granted"] == 1
    assert series["cachecd_lease_oldest_seconds", "train"] == 321.5
    assert series["cachecd_trainer_blocked_seconds_total", "train", "resnet", "1"] == 126
    assert series["cachecd_trainer_wait_ratio", "train", "resnet", "1"] == 0.42
    assert series["cachecd_trainer_queue_ratio", "train", "resnet", "1"] == 0.03


def test_each_state_has_a_series_of_0_or_1():
    series = parsed(busy())
    states = {key[1:]: value for key, value in series.items() if key[0] == "cachecd_dataset_state"}
    assert states["train", "full"] == states["train", "rotation_waits"] == 1
    assert states["train", "stopped"] == states["train-eval", "full"] == 0
    assert set(states.values()) == {0, 1}


def test_names_follow_the_conventions_of_prometheus():
    text = rendered(busy())
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M))
    assert all(re.fullmatch("cachecd_[a-z_]+", name) for name in kinds)
    assert all((kind == "counter") == name.endswith("_total") for name, kind in kinds.items())
    assert not [name for name in kinds if re.search("nano|milli|_ms|percent|_kb", name)]
    assert set(re.findall(r"^# HELP (\S+) .", text, re.M)) == kinds.keys()


def test_page_of_the_documentation_has_every_metric():
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    named = {
        name
        for row in page.splitlines()
        if row.startswith("| `cachecd_")
        for name in re.findall(r"`(cachecd_\w+)`", row)
    }
    assert named == set(re.findall(r"^# TYPE (\S+)", rendered(busy()), re.M))


def test_labels_never_hold_leases_keys_or_reasons():
    text = rendered(busy())
    named = {
        name for names in re.findall(r"{(.*?)} ", text) for name in re.findall("(\\w+)=", names)
    }
    assert named == {"version", "dataset", "state", "stage", "reason", "job", "rank"}
    assert "train.1" not in text
    assert "jpg" not in text


def test_job_without_a_lease_has_no_series():
    document = busy()
    document["leases"] = []
    assert "resnet" not in rendered(busy(), document)


def test_a_hundred_leases_of_a_job_add_no_series():
    few = busy()
    many = deepcopy(few) | {"leases": few["leases"] + [{**few["leases"][0], "lease": "x"}] * 100}
    assert parsed(few).keys() == parsed(many).keys()


def test_empty_cache_has_the_metrics_without_trainers():
    series = parsed(status())
    assert series["cachecd_dataset_records", "train"] == 0
    assert not [name for name, *_ in series if name.startswith("cachecd_trainer")]


def blocked(documents, rank="0"):
    return parsed(*documents)["cachecd_trainer_blocked_seconds_total", "train", "resnet", rank]


def of(*rows, uptime=86_400.0, **values):
    document = status(leases=[lease()], trainers=list(rows), **values)
    document["daemon"]["uptime_s"] = uptime
    return document


def test_total_of_a_rank_grows_over_epochs_and_processes():
    first = of(trainer(pid=1, waited_s=10.0), trainer(pid=2, waited_s=5.0))
    next_epoch = of(trainer(pid=1, epoch=8, waited_s=1.0), trainer(pid=2, waited_s=7.0))
    one_left = of(trainer(pid=1, epoch=8, waited_s=4.0))
    assert blocked([first]) == 15
    assert blocked([first, next_epoch]) == 18
    assert blocked([first, next_epoch, one_left]) == 21


def test_epoch_that_begins_anew_counts_from_zero():
    before, after = of(trainer(waited_s=10.0)), of(trainer(waited_s=2.0, steps=50))
    assert blocked([before, after]) == 12


def test_process_that_was_silent_counts_only_its_growth():
    before, after = of(trainer(waited_s=10.0)), of(trainer(waited_s=12.0))
    other = of(trainer(rank=1, pid=7))
    assert blocked([before, other, other, after]) == 12


def test_lease_that_ends_between_epochs_counts_no_epoch_twice():
    held, ended = of(trainer(waited_s=10.0)), of(trainer(waited_s=11.0))
    ended["leases"] = []
    assert blocked([held, ended, of(trainer(waited_s=13.0))]) == 2


def test_daemon_that_starts_within_an_epoch_counts_only_later_growth():
    first = of(trainer(waited_s=10.0, steps=1000), uptime=1.0)
    later = of(trainer(waited_s=12.0, steps=1010), uptime=2.0)
    assert blocked([first, later]) == 2
    assert parsed(first, later)["cachecd_trainer_batches_total", "train", "resnet", "0"] == 10


def test_epoch_that_begins_after_the_daemon_counts_whole():
    assert blocked([of(trainer(waited_s=2.0, elsewhere_s=1.0), uptime=4.0)]) == 2


def test_figure_that_falls_by_a_millisecond_begins_no_epoch():
    documents = [of(trainer(elsewhere_s=seconds)) for seconds in (5.0, 4.999, 5.001)]
    series = parsed(*documents)
    assert series["cachecd_trainer_batches_total", "train", "resnet", "0"] == 1000
    assert series["cachecd_trainer_step_seconds_total", "train", "resnet", "0"] == 5.001


def test_processes_that_come_and_go_do_not_fill_the_memory(monkeypatch):
    monkeypatch.setattr(metrics, "_MOST_PROCESSES", 10)
    totals = TrainerTotals()
    for pid in range(100):
        totals.add(of(trainer(pid=pid, waited_s=1.0)))
    assert len(totals._reported) == 10
    assert totals.ranks["train", "resnet", "0"]["waited_s"] == 100


def test_rank_that_does_not_see_the_loop_has_counts_but_no_waits():
    series = parsed(of(trainer(blind="a worker reads ahead", queue=None)))
    names = {name for name, *rest in series if "resnet" in rest}
    counts = {f"cachecd_trainer_{name}_total" for name in ("batches", "records", "bytes")}
    assert names == counts


def test_rank_that_sees_nothing_has_no_series():
    nothing = trainer(blind="TensorFlow reads", queue=None, steps=0, records=0, bytes=0)
    assert not [key for key in parsed(of(nothing)) if "resnet" in key]


def test_process_that_sees_the_loop_gives_the_waits_of_its_rank():
    rows = trainer(pid=1, waited_s=10.0), trainer(pid=2, waited_s=5.0, blind="a worker", steps=7)
    assert blocked([of(*rows)]) == 10
    assert parsed(of(*rows))["cachecd_trainer_batches_total", "train", "resnet", "0"] == 1007


def test_mixture_has_series_while_its_job_leases_every_dataset():
    document = of(trainer(dataset="train+extra"))
    assert not [key for key in parsed(document) if "resnet" in key]
    document["leases"].append(document["leases"][0] | {"dataset": "extra"})
    series = parsed(document)
    assert series["cachecd_trainer_records_total", "train+extra", "resnet", "0"] == 256_000
    assert series["cachecd_trainer_wait_ratio", "train+extra", "resnet", "0"] == 0.1


def test_stages_of_a_wait_are_experimental():
    text = rendered(busy())
    names = {line.partition("{")[0] for line in text.splitlines() if 'stage="read"' in line}
    assert names == {"cachecd_experimental_trainer_blocked_stage_seconds_total"}


@pytest.mark.long
def test_promtool_has_no_complaint():
    promtool = shutil.which("promtool")
    assert promtool, "apt install prometheus"
    checked = subprocess.run(
        [promtool, "check", "metrics"], input=rendered(busy()), capture_output=True, text=True
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
