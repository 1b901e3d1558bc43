from __future__ import annotations

from cachecd.server import Answered
from cachecd_client.protocol import Done


def test_a_request_finds_the_reply_that_it_got():
    answered = Answered()
    assert answered.find(b"one") is None
    answered.keep(b"one", Done("1"))
    assert answered.find(b"one") == Done("1")
    assert answered.find(b"another") is None


def test_the_oldest_replies_are_forgotten_when_there_are_too_many():
    answered = Answered()
    for number in range(8193):
        answered.keep(b"%d" % number, Done(str(number)))
    assert answered.find(b"0") is None
    assert answered.find(b"1") == Done("1")
    assert answered.find(b"8192") == Done("8192")


def test_the_oldest_replies_are_forgotten_when_requests_are_long():
    answered = Answered()
    for number in range(9):
        answered.keep(bytes([number]) * (1 << 19), Done(str(number)))
    assert answered.find(bytes(1 << 19)) is None
    assert answered.find(bytes([8]) * (1 << 19)) == Done("8")
