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


def test_a_signal_that_comes_in_the_last_cleanup_is_raised_after_it():
    cleaned = []

    def interrupted():
        with Interruption() as interruption:
            with interruption.heeded():
                pass
            send(signal.SIGTERM)
            cleaned.append(True)

    with pytest.raises(SystemExit):
        interrupted()
    assert cleaned == [True]


def test_a_signal_whose_exception_was_lost_is_found_again(monkeypatch):
    lost = []
    monkeypatch.setattr("sys.unraisablehook", lost.append)

    class Careless:
        def __del__(self):
            send(signal.SIGINT)
            for _ in range(1000):  # somewhere here the handler runs, where nothing can be raised
                pass

    def interrupted():
        with Interruption() as interruption, interruption.heeded():
            Careless()
            assert [one.exc_type for one in lost] == [KeyboardInterrupt]
            lost.clear()
            interruption.check()

    with pytest.raises(KeyboardInterrupt):
        interrupted()


def test_without_a_signal_everything_is_as_before(handlers):
    with Interruption() as interruption, interruption.heeded():
        assert signal.getsignal(signal.SIGTERM) != handlers[signal.SIGTERM]
    assert {number: signal.getsignal(number) for number in handlers} == handlers


def test_under_nohup_a_closed_terminal_is_still_ignored():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with Interruption() as interruption, interruption.heeded():
        send(signal.SIGHUP)
