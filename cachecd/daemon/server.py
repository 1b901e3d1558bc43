"""The control socket: a ZeroMQ ROUTER that turns frames into requests and replies into frames.

An invalid message is dropped and counted. A peer of another major version gets a reply that says so. A
reply may be sent much later than its request was read. A request may be repeated with the same bytes. The
repetition has no second effect, and gets the same reply.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import structlog
import zmq
import zmq.asyncio

from cachecd_client import protocol

_REPLIES = 8192  # enough for 5 seconds, if 100 jobs of 8 ranks send a request twice a second
_BYTES = 4 * protocol.MAX_MESSAGE_BYTES
_WITHOUT_EFFECT = (protocol.AskStatus, protocol.AskDetails, protocol.AskSpans)  # answered anew
_log = structlog.get_logger("cachecd.server")

Answer = Callable[[protocol.Reply], None]


class Answered:
    """The latest replies, by the bytes of their requests. Two clients may choose the same id, but other
    bytes of their requests differ."""

    def __init__(self) -> None:
        self._replies: OrderedDict[bytes, protocol.Reply] = OrderedDict()
        self._bytes = 0

    def find(self, request: bytes) -> protocol.Reply | None:
        """Returns the reply to a request, or None if there was no reply or it was dropped since."""
        return self._replies.get(request)

    def keep(self, request: bytes, reply: protocol.Reply) -> None:
        """Keeps the reply to a request. Drops the oldest replies if there are too many."""
        self._replies[request] = reply
        self._bytes += len(request)
        while len(self._replies) > _REPLIES or self._bytes > _BYTES:
            oldest, _ = self._replies.popitem(last=False)
            self._bytes -= len(oldest)


class Server:
    """Passes each request to `handle`, in order of arrival. `handle` calls the given function once with the
    reply, now or later, on the event loop."""

    def __init__(self, endpoint: str, handle: Callable[[protocol.Request, Answer], None]) -> None:
        """Binds the socket at once. zmq.ZMQError if this fails."""
        self._handle = handle
        self._answered = Answered()
        self._due: dict[bytes, bytes] = {}  # by pending request: the peer that sent it last
        self.dropped = 0
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        # ZeroMQ disconnects a peer that sends a larger message.
        self._socket.setsockopt(zmq.MAXMSGSIZE, protocol.MAX_MESSAGE_BYTES)
        try:
            self._socket.bind(endpoint)
        except zmq.ZMQError:
            self.close()
            raise

    async def serve(self) -> None:
        """Runs until cancelled."""
        while True:
            frames = await self._socket.recv_multipart()
            try:
                if not self._read(frames):
                    self.dropped += 1
            except Exception as error:
                # A message must not stop the replies to other peers, whatever its content is.
                self.dropped += 1
                _log.warning("message dropped", why=repr(error))
            # If messages are queued, recv_multipart does not pause. A peer that sends without end must not
            # stop the rest of the daemon.
            await asyncio.sleep(0)

    def _read(self, frames: list[bytes]) -> bool:
        """Handles a message. Returns False if it is invalid."""
        if len(frames) < 3 or frames[1] != b"":
            return False
        major = protocol.major_of(frames[2])
        if major is None:
            return False
        if major != protocol.MAJOR:  # only the first frame has the same meaning in all versions
            message = (
                f"this daemon speaks protocol {protocol.MAJOR}, the client speaks {major}: "
                "install cachecd and cachecd-client of the same version"
            )
            body = _body(frames[-1])
            self._send(frames[0], protocol.Refused(body["id"] if body else "", "version", message))
            return True
        if len(frames) != 4:
            return False
        peer, sent = frames[0], frames[3]
        if (known := self._answered.find(sent)) is not None:
            self._send(peer, known)
            return True
        if sent in self._due:
            self._due[sent] = peer
            return True
        request = self._request(sent)
        if isinstance(request, protocol.Refused):
            self._send(peer, request)
        elif request is not None:
            self._due[sent] = peer
            self._begin(sent, request)
        return request is not None

    def _begin(self, sent: bytes, request: protocol.Request) -> None:
        def answer(reply: protocol.Reply) -> None:
            if not isinstance(request, _WITHOUT_EFFECT):
                self._answered.keep(sent, reply)
            if (peer := self._due.pop(sent, None)) is not None:
                self._send(peer, reply)

        try:
            self._handle(request, answer)
        except Exception:
            # A request must not end the daemon, because other clients need it.
            _log.exception("request failed", request=type(request).__name__)
            if (peer := self._due.pop(sent, None)) is not None:
                message = "internal error; see the daemon's log"
                self._send(peer, protocol.Refused(request.id, "bad-request", message))

    def _send(self, peer: bytes, reply: protocol.Reply) -> None:
        """Sends a reply. Does not wait for a peer that does not read."""
        frames = [peer, b"", *protocol.encode(reply)]
        sending = self._socket.send_multipart(frames, flags=zmq.NOBLOCK)
        if isinstance(sending, asyncio.Future):
            sending.add_done_callback(self._sent)

    def _sent(self, sending: asyncio.Future[Any]) -> None:
        if not sending.cancelled() and (error := sending.exception()) is not None:
            self.dropped += 1
            _log.warning("reply dropped", why=repr(error))

    def _request(self, sent: bytes) -> protocol.Request | protocol.Refused | None:
        """Returns the request in `sent`, or the reply that refuses it; None if it has no id."""
        body = _body(sent)
        if body is None:
            return None
        id = body["id"]
        try:
            request: protocol.Request = protocol.parse(protocol.REQUESTS, body)
        except ValueError as error:
            return protocol.Refused(id, "bad-request", str(error))
        for field in dataclasses.fields(request):
            name, value = field.name, getattr(request, field.name)
            is_keys = name in ("keys", "samples")
            most = protocol.MAX_KEY if is_keys else protocol.MAX_TEXT
            for text in value if is_keys else [value] if isinstance(value, str) else ():
                if len(text) > most:
                    why = f"{name}: {len(text)} characters, expected at most {most}"
                    return protocol.Refused(id, "bad-request", why)
                # The key of an object need not be Unicode.
                if not is_keys and any("\ud800" <= char <= "\udfff" for char in text):
                    return protocol.Refused(id, "bad-request", f"{name}: found a lone surrogate")
        return request

    def close(self) -> None:
        """Unbinds and frees the socket."""
        self._socket.close()
        self._context.term()


def _body(text: bytes) -> dict[str, Any] | None:
    """Returns the fields of the request in `text`, or None if it is not JSON with an id."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return None
    id = body.get("id") if isinstance(body, dict) else None
    return body if isinstance(id, str) and len(id) <= protocol.MAX_TEXT else None
