"""Signals end the demo through its cleanups, and only once. Real signals, to this process."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest

from cachecd.demo.experiment import interruptible

ENDING = [
    (signal.SIGINT, KeyboardInterrupt, ()),
    (signal.SIGTERM, SystemExit, (143,)),
    (signal.SIGHUP, SystemExit, (129,)),
]


@pytest.fixture(autouse=True)
def handlers():
    """The test runner's own, whatever a test leaves."""
    before = {number: signal.getsignal(number) for number, _, _ in ENDING}
    for number, _, _ in ENDING:
        if before[number] == signal.SIG_IGN:  # as a suite under nohup has SIGHUP
            signal.signal(number, signal.SIG_DFL)
    yield {number: signal.getsignal(number) for number, _, _ in ENDING}
    for number, handler in before.items():
        signal.signal(number, handler)


def send(number):
    os.kill(os.getpid(), number)


@pytest.mark.parametrize(("number", "error", "arguments"), ENDING)
def test_a_signal_raises_what_the_exit_code_needs(number, error, arguments):
    with pytest.raises(error) as raised, interruptible():
        send(number)
    assert raised.value.args == arguments


@pytest.mark.parametrize("interrupts", [True, False])
def test_a_signal_does_not_disturb_the_cleanup(interrupts):
    cleaned = []

    def clean_up():
        for number, _, _ in ENDING:
            send(number)
        cleaned.append(True)

    with contextlib.suppress(KeyboardInterrupt), interruptible() as owned:
        owned.callback(clean_up)
        if interrupts:
            send(signal.SIGINT)
            pytest.fail("not heeded")
    assert cleaned == [True]
    if interrupts:
        send(signal.SIGINT)  # and so on until the process has ended


def test_what_fails_by_itself_leaves_signals_as_they_were(handlers):
    with pytest.raises(ZeroDivisionError), interruptible():
        raise ZeroDivisionError
    assert {number: signal.getsignal(number) for number in handlers} == handlers


def test_without_a_signal_everything_is_as_before(handlers):
    with interruptible():
        assert signal.getsignal(signal.SIGTERM) != handlers[signal.SIGTERM]
    assert {number: signal.getsignal(number) for number in handlers} == handlers


def test_under_nohup_a_closed_terminal_is_still_ignored():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with interruptible():
        send(signal.SIGHUP)
