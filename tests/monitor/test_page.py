"""The page: what it loads, what it does with text that wants to be HTML, and in the long form what a
browser shows."""

from __future__ import annotations

import html
import math
import re
import shutil
import subprocess
import sys
import threading
import time
from copy import deepcopy
from importlib import resources
from itertools import count
from pathlib import Path

import pytest

from cachecd.monitor.history import History
from cachecd.monitor.http import HttpServer
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


def chromium(*arguments):
    executable = shutil.which("chromium")
    assert executable, "apt install chromium"
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    options += ["--enable-logging=stderr", "--run-all-compositor-stages-before-draw"]
    options += ["--virtual-time-budget=6000", "--lang=en"]
    return subprocess.run(
        [executable, *options, *arguments], capture_output=True, text=True, timeout=120
    )


def shown(history, document):
    """The page as a browser has it after some seconds, as HTML, and what it wrote to the console."""
    with Site(history, document) as url:
        ran = chromium("--dump-dom", url)
    return ran.stdout, [line for line in ran.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.long
def test_browser_shows_the_figures_of_a_busy_cache():
    page, console = shown(past(time.time()), busy())
    assert console == [], "the policy of contents or the script complains"
    assert page.count("<canvas") == 10
    text = html.unescape(re.sub(r"<[^>]+>", " ", page))
    for expected in (
        "live",
        "42 %",
        "61 %",
        "held by 2 of 2 ranks",
        "11",
        "cannot decode",
        "resize",
    ):
        assert expected in text
    assert "No space left on device" in text


@pytest.mark.long
def test_text_that_wants_to_be_html_stays_text():
    page, console = shown(past(time.time()), busy())
    assert console == []
    assert "<title>cachecd</title>" in page
    assert page.count("<script") == 2
    assert html.escape(HOSTILE[:40], quote=False) in page


@pytest.mark.long
def test_browser_shows_an_empty_cache():
    page, console = shown(History(), status())
    assert console == []
    text = html.unescape(re.sub(r"<[^>]+>", " ", page))
    for expected in (
        "no trainer reports",
        "No job holds a set.",
        "Nothing was skipped.",
        "No data yet.",
    ):
        assert expected in text


if __name__ == "__main__":  # FOLDER: writes screenshots, for a person to look at
    folder = Path(sys.argv[1])
    kinds = {"busy": (lambda: past(time.time()), busy), "empty": (History, status)}
    for kind, (history, document) in kinds.items():
        for width, height in ((1280, 3400), (400, 7200)):
            for dark in (False, True):
                path = folder / f"{kind}-{width}{'-dark' if dark else ''}.png"
                scheme = (
                    ["--force-dark-mode", "--blink-settings=preferredColorScheme=0"] if dark else []
                )
                with Site(history(), document()) as url:
                    size = f"--window-size={width},{height}"
                    chromium(*scheme, "--hide-scrollbars", size, f"--screenshot={path}", url)
