"""Signals end the demo through its cleanups, and only once. Real signals, to this process."""

from __future__ import annotations

import os
import signal

import pytest

from cachecd.demo.interruption import Interruption

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
    with pytest.raises(error) as raised, Interruption() as interruption, interruption.heeded():
        send(number)
    assert raised.value.args == arguments


def test_a_second_signal_does_not_disturb_the_cleanup():
    cleaned = []

    def interrupted():
        with Interruption() as interruption:
            try:
                with interruption.heeded():
                    send(signal.SIGINT)
            finally:
                for number, _, _ in ENDING:
                    send(number)
                cleaned.append(True)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    send(signal.SIGINT)  # and so on until the process has ended
    assert cleaned == [True]


def test_under_nohup_a_closed_terminal_is_still_ignored():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with Interruption() as interruption, interruption.heeded():
        send(signal.SIGHUP)
