"""The page: what it loads, what it does with text that wants to be HTML, and in the long form what a
browser shows."""

from __future__ import annotations

import math
import re
import sys
import threading
import time
from contextlib import contextmanager
from copy import deepcopy
from importlib import resources
from itertools import count
from pathlib import Path

import pytest

from cachecd.monitor.history import History
from cachecd.monitor.http import HttpServer
from tests.monitor.browser import Browser
from tests.monitor.documents import GIB, HOSTILE, busy, status

PAGE = resources.files("cachecd.monitor") / "page"
OURS = {name: (PAGE / name).read_text() for name in ("index.html", "page.js", "page.css")}


@pytest.mark.parametrize("name", OURS)
def test_page_names_no_other_host(name):
    assert re.findall(r"https?://|//[a-z]", OURS[name].replace("// ", "")) == []


def test_page_never_turns_text_into_html():
    forbidden = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|\.on\w+ ="
    )
    assert re.findall(forbidden, OURS["page.js"]) == []
    assert re.findall(r"<script>|<style|style=|\son\w+=", OURS["index.html"]) == []


def test_licence_of_the_plots_is_beside_them():
    assert "MIT License" in (PAGE / "uPlot.LICENSE").read_text()
    assert "uPlot (v1.6" in (PAGE / "uPlot.iife.min.js").read_text()[:200]


def past(now, minutes=180):
    """A busy cache, and its history: epochs that grow to the limit, and a queue that dips."""
    history, end = History(), busy()
    seconds = [now - 60 * n for n in range(minutes, 10, -1)] + [now - n for n in range(600, 0, -1)]
    begin = seconds[0]
    for n, at in enumerate(seconds):
        done = (at - begin) / (now - begin)
        document = deepcopy(end)
        train, cache = document["datasets"]["train"], document["cache"]
        train["data_bytes"] = int(GIB * min(92, 2 + 180 * done))
        train["coverage"] = 0.61 * done
        train["evicted_shards"] = int(640 * max(0, done - 0.5) * 2)
        train["bytes_per_second"] = int(183e6 * (0.8 + 0.2 * math.sin(at / 40)))
        cache["used"] = min(98 * GIB, train["data_bytes"] + 5 * GIB)
        for stage in train["ingest"].values():
            stage["cpu_s"] *= done
            stage["wall_s"] *= done
        cache["paused_s"] = {key: value * done for key, value in cache["paused_s"].items()}
        for row in document["leases"]:
            row["epoch"] = int(row["epoch"] * done)
        for row in document["trainers"]:
            dips = n % 97 > 90
            row["wait_share"] = (0.42 if dips else 0.04) * (1 if row["rank"] else 0.5)
            if row["queue"] is not None:
                row["queue"] = 0.05 if dips else 0.7 + 0.2 * math.sin(at / 30)
        history.add(document, at)
    return history


class Site:
    """A server whose document changes each second, as a daemon's does."""

    def __init__(self, history, document):
        self.history, self.document = history, document
        self.server = HttpServer("127.0.0.1", 0, history)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        for second in count():
            document = deepcopy(self.document)
            document["daemon"]["uptime_s"] += second
            self.history.add(document, time.time())
            self.server.offer(document)
            if self._ended.wait(0.2 if second < 3 else 1):
                return

    def __enter__(self):
        self._thread.start()
        return f"http://127.0.0.1:{self.server.port}/"

    def __exit__(self, *_):
        self._ended.set()
        self._thread.join()
        self.server.close()


@contextmanager
def opened(history, document, **options):
    """A browser that shows the page."""
    with Site(history, document) as url, Browser(**options) as browser:
        browser.open(url)
        browser.until("document.getElementById('link')?.textContent === 'live'")
        yield browser
        assert browser.problems == [], (
            "the script fails, or the policy of contents refuses something"
        )
        assert browser.hosts == {url.split("/")[2]}


TEXT = "document.body.innerText"


@pytest.mark.long
def test_browser_shows_the_figures_of_a_busy_cache():
    with opened(past(time.time()), busy()) as browser:
        text = browser.evaluate(TEXT).replace("\u00a0", " ")
        assert browser.evaluate("document.querySelectorAll('canvas').length") == 10
    for expected in ("42 %", "61 %", "held by 2 of 2 ranks", "cannot decode", "resize"):
        assert expected in text
    assert "No space left on device" in text


@pytest.mark.long
def test_text_that_wants_to_be_html_stays_text():
    with opened(past(time.time()), busy()) as browser:
        assert browser.evaluate("document.title") == "cachecd"
        assert browser.evaluate("document.scripts.length") == 2
        assert browser.evaluate(TEXT).count(HOSTILE[:40]) >= 3


@pytest.mark.long
def test_browser_shows_an_empty_cache():
    with opened(History(), status()) as browser:
        text = browser.evaluate(TEXT)
    for expected in (
        "no trainer reports",
        "No job holds a set.",
        "Nothing was skipped.",
        "No data yet.",
    ):
        assert expected in text


@pytest.mark.long
def test_page_fits_a_phone():
    with opened(past(time.time()), busy(), width=400, dark=True) as browser:
        assert browser.evaluate("document.documentElement.scrollWidth") <= 400
        rights = (
            "[...document.querySelectorAll('canvas')].map((c) => c.getBoundingClientRect().right)"
        )
        assert all(300 < right <= 400 for right in browser.evaluate(rights))


@pytest.mark.long
def test_every_plot_has_a_name_and_a_table_that_the_keyboard_opens():
    with opened(past(time.time()), busy()) as browser:
        spoken = browser.spoken()
        plots = [name for role, name in spoken if role == "image" and "Last: " in name]
        assert len(plots) == 10
        browser.evaluate("document.querySelector('summary').focus()")
        browser.press("Enter", 13)
        browser.until("document.querySelector('details').open")
        browser.until("document.querySelectorAll('details table tbody tr').length >= 50")
        named = {name for role, name in browser.spoken() if role == "table"}
        assert {"Waiting, by job", "Leases, the oldest first", "Skipped, and why"} <= named


@pytest.mark.long
def test_arrow_keys_choose_the_range_of_time():
    with opened(past(time.time()), busy()) as browser:
        browser.evaluate("document.querySelector('summary').click()")
        browser.evaluate("document.querySelector('[name=range]').focus()")
        browser.press("ArrowDown", 40)
        browser.until("document.querySelector('[value=\"7200\"]').checked")
        first = "document.querySelector('details table tbody tr:last-child th').textContent"
        shown = browser.evaluate(first)
        assert shown < time.strftime("%H:%M:%S", time.localtime(time.time() - 3600)) or shown > "22"


@pytest.mark.long
def test_page_says_when_the_daemon_has_ended():
    with Browser() as browser:
        with Site(past(time.time()), busy()) as url:
            browser.open(url)
            browser.until("document.getElementById('link')?.textContent === 'live'")
        browser.until("document.getElementById('link').textContent.startsWith('no answer')")


if __name__ == "__main__":  # FOLDER: writes screenshots, for a person to look at
    folder = Path(sys.argv[1])
    kinds = {"busy": (lambda: past(time.time()), busy), "empty": (History, status)}
    for kind, (history, document) in kinds.items():
        for width in (1280, 400):
            for dark in (False, True):
                path = folder / f"{kind}-{width}{'-dark' if dark else ''}.png"
                with opened(history(), document(), width=width, dark=dark) as browser:
                    browser.screenshot(path)
