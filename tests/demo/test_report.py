"""What the demo prints."""

from __future__ import annotations

import json
from dataclasses import replace

from cachecd.demo.report import EpochRow, Setting, Summary, json_line

MIB = 1 << 20
SETTING = Setting(
    directory="/tmp/cachecd-demo-0a1b2c3d",
    images=1797,
    object_bytes=3 * MIB,
    pixel_bytes=7 * MIB,
    limit_bytes=6 * MIB,
    bandwidth="400kB/s",
    epoch_seconds=1.0,
)
ROW = EpochRow(
    epoch=0,
    files=5,
    records=70,
    seen=0.04375,
    disk_bytes=2_411_724,
    limit_bytes=6 * MIB,
    evicted_shards=0,
    read_bytes_per_second=209.2e6,
    waited_seconds=2.34,
    accuracy=0.848,
)
SUMMARY = Summary(
    epochs=10,
    seconds=14.2,
    most_disk_bytes=5 * MIB,
    limit_bytes=6 * MIB,
    measurements=235,
    evicted_shards=84,
    seen=1.0,
    first_accuracy=0.848,
    last_accuracy=0.954,
)


def test_the_table_fits_a_terminal_of_80_columns():
    row = replace(
        ROW, epoch=998, files=115, records=1600, seen=1.0, disk_bytes=99 * MIB,
        evicted_shards=99_999, read_bytes_per_second=9e9, waited_seconds=99.9, accuracy=1.0
    )  # fmt: skip
    summary = replace(SUMMARY, epochs=999, seconds=9999, measurements=99_999, last_accuracy=1.0)
    for part in (SETTING, ROW, row, summary):
        assert max(map(len, part.text().splitlines())) <= 80


def test_the_summary_is_as_the_readme_shows_it():
    assert SUMMARY.text().splitlines() == [
        "",
        "10 epochs in 14 s: accuracy 84.8% -> 95.4%.",
        "The limit was never exceeded: at most 5.0 of 6.0 MiB in 235 measurements.",
        "100% of the training images were seen; 84 files were evicted to make room.",
    ]


def test_json_is_an_object_a_line_with_every_figure():
    lines = [json_line(part) for part in (SETTING, ROW, SUMMARY)]
    assert "\n" not in "".join(lines)
    setting, row, summary = map(json.loads, lines)
    assert (setting["kind"], summary["kind"]) == ("setting", "summary")
    assert setting["directory"] == SETTING.directory
    assert EpochRow(**{k: v for k, v in row.items() if k != "kind"}) == ROW
    assert summary["limit_kept"] is True
