"""What the demo prints."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest

from cachecd.demo.report import JsonLines, Row, Setting, Summary, Table

MIB = 1 << 20
SETTING = Setting(
    directory="/tmp/cachecd-demo-0a1b2c3d",
    store="s3://digits",
    framework="tensorflow",
    images=1797,
    object_bytes=3 * MIB,
    pixel_bytes=7 * MIB,
    limit_bytes=6 * MIB,
    bandwidth="400kB/s",
    epoch_seconds=1.0,
)
ROW = Row(
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


@pytest.fixture
def out():
    return io.StringIO()


def test_a_row_stands_under_its_heads(out):
    table = Table(out)
    table.begin(SETTING)
    table.row(ROW)
    *_, head, row = out.getvalue().splitlines()
    assert head == "epoch  files  records  seen    MiB on disk  evicted   MB/s  waited  accuracy"
    assert row == "    1      5       70    4%    2.3 of 6.0        0  209.2   2.3 s     84.8%"


def test_the_heads_come_once_and_with_the_first_row(out):
    table = Table(out)
    table.begin(SETTING)
    assert "epoch  files" not in out.getvalue()
    table.row(ROW)
    table.row(ROW)
    assert out.getvalue().count("epoch  files") == 1


def test_the_table_fits_a_terminal_of_80_columns(out):
    table = Table(out)
    table.begin(SETTING)
    table.row(
        replace(ROW, epoch=998, files=115, records=1600, seen=1.0, disk_bytes=99 * MIB,
                evicted_shards=99_999, read_bytes_per_second=9e9, waited_seconds=99.9, accuracy=1.0)
    )  # fmt: skip
    table.end(replace(SUMMARY, epochs=999, seconds=9999, measurements=99_999, last_accuracy=1.0))
    assert max(map(len, out.getvalue().splitlines())) <= 80


def test_a_limit_that_was_not_kept_is_said_aloud(out):
    summary = replace(SUMMARY, most_disk_bytes=6 * MIB + 1)
    assert not summary.limit_kept
    Table(out).end(summary)
    assert "EXCEEDED" in out.getvalue()
    assert replace(SUMMARY, most_disk_bytes=6 * MIB).limit_kept


def test_json_is_an_object_a_line_with_every_figure(out):
    report = JsonLines(out)
    report.begin(SETTING)
    report.row(ROW)
    report.end(SUMMARY)
    setting, row, summary = map(json.loads, out.getvalue().splitlines())
    assert setting["kind"] == "setting"
    assert setting["directory"] == SETTING.directory
    assert Row(**{k: v for k, v in row.items() if k != "kind"}) == ROW
    assert summary["limit_kept"] is True


@pytest.mark.parametrize("kind", [Table, JsonLines])
def test_every_line_is_handed_over_at_once(kind):
    class Unread(io.StringIO):
        flushed = 0

        def flush(self):
            self.flushed = self.tell()

    out = Unread()
    report = kind(out)
    report.begin(SETTING)
    assert out.flushed == out.tell() > 0
    report.row(ROW)
    assert out.flushed == out.tell()
