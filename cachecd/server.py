"""The control socket: a ZeroMQ ROUTER that turns frames into requests and replies into frames.

Whatever arrives that is no request is dropped and counted; it never reaches the policy. A peer of
another major version gets one clear answer. A request that comes again, the same in every byte, gets
the reply that it got, and has no second effect.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections import OrderedDict
from collections.abc import Callable
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import structlog
import zmq
import zmq.asyncio
from pydantic import BaseModel, FailFast, ValidationError, create_model

from cachecd_client import protocol


def _failing_fast(hint: Any) -> Any:
    """The same type, of whose lists the first wrong element is reported and no other: to tell of 20,000
    takes 100 ms."""
    if get_origin(hint) is not list:
        return hint
    (element,) = get_args(hint)
    return Annotated[list[_failing_fast(element)], FailFast()]  # type: ignore[misc]


def _form(request: type[Any]) -> type[BaseModel]:
    """What the fields of a request must be; the client's dataclasses stay plain."""
    hints = get_type_hints(request)
    fields: dict[str, Any] = {}
    for f in dataclasses.fields(request):
        needed = f.default is f.default_factory  # neither is given
        fields[f.name] = (_failing_fast(hints[f.name]), ... if needed else None)
    return create_model(request.__name__, **fields)


_FORMS = {name: _form(request) for name, request in protocol.REQUESTS.items()}
_REPLIES = 8192  # of 100 jobs of 8 ranks that wait, asking twice a second each: 5 s
_BYTES = 4 * protocol.MAX_MESSAGE_BYTES
_log = structlog.get_logger("cachecd.server")


class Answered:
    """Replies by request; the oldest is forgotten when there are too many.

    A request is all its bytes: two clients that chose the same id asked two questions.
    """

    def __init__(self) -> None:
        self._replies: OrderedDict[bytes, protocol.Reply] = OrderedDict()
        self._bytes = 0

    def find(self, request: bytes) -> protocol.Reply | None:
        """The reply that this request got; None if it was never answered, or too long ago."""
        return self._replies.get(request)

    def keep(self, request: bytes, reply: protocol.Reply) -> None:
        """Notes what a request was answered, for the first time."""
        self._replies[request] = reply
        self._bytes += len(request)
        while len(self._replies) > _REPLIES or self._bytes > _BYTES:
            forgotten, _ = self._replies.popitem(last=False)
            self._bytes -= len(forgotten)


class Server:
    """Answers requests one by one, in order of arrival, with what `answer` returns."""

    def __init__(self, endpoint: str, answer: Callable[[protocol.Request], protocol.Reply]) -> None:
        """Binds at once; zmq.ZMQError if the endpoint cannot be bound."""
        self._answer = answer
        self._answered = Answered()
        self.dropped = 0
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        # ZeroMQ itself cuts off a peer that sends more.
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
                reply = self._handle(frames)
                if reply is None:
                    self.dropped += 1
                else:
                    # A peer that does not read must not hold the others up.
                    await self._socket.send_multipart(
                        [frames[0], b"", *protocol.encode(reply)], flags=zmq.NOBLOCK
                    )
            except Exception as error:
                # One message, whatever is in it, must not silence the socket for all others.
                self.dropped += 1
                _log.warning("message dropped", why=repr(error))
            # A message that is there is received without waiting; who sends them without end must
            # not stop the rest of the daemon.
            await asyncio.sleep(0)

    def _handle(self, frames: list[bytes]) -> protocol.Reply | None:
        if len(frames) < 3 or frames[1] != b"":
            return None
        major = protocol.major_of(frames[2])
        if major is None:
            return None
        if major != protocol.MAJOR:  # of which no more than the first frame can be known
            message = (
                f"this daemon speaks protocol {protocol.MAJOR}, the client speaks {major}: "
                "install cachecd and cachecd-client of the same version"
            )
            body = _body(frames[-1])
            return protocol.Refused(body["id"] if body else "", "version", message)
        if len(frames) != 4:
            return None
        return self._answered.find(frames[3]) or self._reply(frames[3])

    def _reply(self, sent: bytes) -> protocol.Reply | None:
        body = _body(sent)
        if body is None:
            return None
        id = body["id"]
        kind = str(body.get("type"))
        if kind not in _FORMS:
            return protocol.Refused(id, "bad-request", "unknown type of request")
        try:
            found = _FORMS[kind].model_validate(body, strict=True)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "request"
            return protocol.Refused(id, "bad-request", f"{where}: {first['msg']}")
        for name, value in body.items():
            most = protocol.MAX_KEY if name == "key" else protocol.MAX_TEXT
            if isinstance(value, str) and len(value) > most:
                why = f"{name}: {len(value)} characters, expected at most {most}"
                return protocol.Refused(id, "bad-request", why)
            # Names of objects need not be Unicode.
            if isinstance(value, str) and name != "key" and _is_not_unicode(value):
                return protocol.Refused(id, "bad-request", f"{name}: found a lone surrogate")
        said = {name: getattr(found, name) for name in found.model_fields_set}
        request = protocol.REQUESTS[kind](**said)
        try:
            reply = self._answer(request)
        except Exception:
            # One request must not end the daemon that others depend on.
            _log.exception("request failed", request=type(request).__name__)
            return protocol.Refused(id, "bad-request", "internal error; see the daemon's log")
        if not isinstance(
            request, protocol.AskStatus
        ):  # which changes nothing, and is answered anew
            self._answered.keep(sent, reply)
        return reply

    def close(self) -> None:
        """Unbinds and frees the socket."""
        self._socket.close()
        self._context.term()


def _is_not_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _body(text: bytes) -> dict[str, Any] | None:
    """The request in `text`, which has an id; None if it is no request of any version."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return None
    id = body.get("id") if isinstance(body, dict) else None
    return body if isinstance(id, str) and len(id) <= protocol.MAX_TEXT else None
