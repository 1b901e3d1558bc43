"""The benchmark of images measures this project's readers and judges its bars by the figures."""

from __future__ import annotations

import pytest

from tests.bench import images
from tests.bench.shortform import run

CASES = ("jpg256", "masks", "png256", "pixels256", "bytes4kB", "bare786kB", "job", "capacity")


@pytest.mark.long
def test_our_readers_are_measured_and_told_in_the_page(tmp_path):
    page, figures = tmp_path / "page.md", tmp_path / "figures.json"
    page.write_text("<!-- images: begin -->\n<!-- images: end -->\n")
    place = ["--data", str(tmp_path / "data"), "--page", str(page)]
    ours = [f"{case}/ours*" for case in CASES]
    found, printed = run("images", "--quick", *place, "--only", *ours, figures=figures)
    assert found["absent"] == {}
    assert found["measured"].keys() == set(CASES)
    assert found["measured"]["jpg256"]["ours"]["images_s"][0] > 0
    assert found["measured"]["job"]["ours-job"]["nothing_s"][0] > 0
    records = found["measured"]["capacity"]["ours-encoded"]["records"]
    assert records == [found["plan"]["job"]]
    tables = printed.partition("**")[2]
    assert tables
    assert tables in page.read_text()
    assert printed.count("not measured") == len(images.BARS) - 3


@pytest.mark.parametrize(("ours", "met"), [([5.0, 2.2, 1.0], True), ([5.0, 2.1, 8.0], False)])
def test_a_bar_is_judged_by_the_median_ratio_to_the_best(ours, met):
    measured = {
        "jpg256": {"ours": {"images_s": ours}, "dali": {"images_s": [1.0, 1.0, 4.0]}},
        "job": {way: {"nothing_s": [s]} for way, s in
                {"ours-job": 7.0, "litdata-job": 20.0, "mosaic-job": 10.0}.items()},
    }  # fmt: skip
    rows = {(row.bar, row.case, row.against): row for row in images.judge(measured, 1.0)}
    assert rows["images/s", "jpg256", "dali"].met is met
    nothing = rows["seconds from nothing to every image once", "job", "mosaic-job"]
    assert (nothing.measured, nothing.met) == (0.7, True)
