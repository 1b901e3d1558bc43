"""Progress on stderr: nothing for short work, a line that changes on a terminal, else one line a minute."""

from __future__ import annotations

import io

import pytest

from cachecd.cli.progress import Progress
from cachecd.quantities import progress_text
from tests.clock import Clock


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock() -> Clock:
    return Clock()


def printed(progress: Progress, clock: Clock, seconds: list[float]) -> list[bool]:
    found = []
    for second in seconds:
        clock.now = second
        progress.note("verified", second * (1 << 20), 100 << 20)
        found.append(progress.print_if_due())
    return found


def test_work_of_less_than_two_seconds_prints_nothing(clock: Clock):
    out = io.StringIO()
    with Progress(out, clock) as progress:
        assert printed(progress, clock, [0.0, 1.0, 1.9]) == [False] * 3
    assert out.getvalue() == ""


def test_without_a_terminal_there_is_one_line_a_minute(clock: Clock):
    out = io.StringIO()
    progress = Progress(out, clock)
    seconds = [float(second) for second in range(0, 100)]
    assert [s for s, p in zip(seconds, printed(progress, clock, seconds), strict=True) if p] == [
        2.0,
        62.0,
    ]
    first, second = out.getvalue().splitlines()
    assert first == "verified, 2.0 MiB of 100.0 MiB (2 %), 1.05 MB/s, about 98 s left"
    assert second == "verified, 62.0 MiB of 100.0 MiB (62 %), 1.05 MB/s, about 38 s left"


def test_a_terminal_has_one_line_that_is_cleared_at_the_end(clock: Clock):
    out = Terminal()
    with Progress(out, clock) as progress:
        assert printed(progress, clock, [1.0, 2.0, 2.4, 2.5]) == [False, True, False, True]
    assert "\n" not in out.getvalue()
    assert out.getvalue().count("\r\x1b[K") == 3
    assert out.getvalue().endswith("\r\x1b[K")


def test_a_narrow_terminal_gets_a_line_that_fits(clock: Clock, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "20")
    out = Terminal()
    progress = Progress(out, clock)
    printed(progress, clock, [3.0])
    assert out.getvalue() == "\r\x1b[Kverified, 3.0 MiB o"


def test_another_phase_begins_with_its_own_rate(clock: Clock):
    progress = Progress(io.StringIO(), clock)
    progress.note("a", 50 << 20)
    progress.line()
    clock.now = 10.0
    progress.note("b", 0, 10 << 20)
    assert progress.line() == "b, 0 B of 10.0 MiB (0 %)"


def test_work_without_figures_shows_its_seconds(clock: Clock):
    progress = Progress(io.StringIO(), clock)
    progress.note("train: listing")
    clock.now = 12.0
    assert progress.line() == "train: listing, 12 s"


@pytest.mark.parametrize(
    ("figures", "text"),
    [
        ((0, 0, 0.0), ""),
        ((512, 0, 0.0), "512 B"),
        ((1 << 30, 4 << 30, 95e6), "1.0 GiB of 4.0 GiB (25 %), 95 MB/s, about 34 s left"),
        ((5 << 30, 4 << 30, 95e6), "5.0 GiB of 4.0 GiB (100 %), 95 MB/s"),
        ((12_000, 0, 3000.0, "objects"), "12,000 objects, 3,000 objects/s"),
    ],
)
def test_progress_in_words(figures: tuple[float, ...], text: str):
    assert progress_text(*figures) == text
