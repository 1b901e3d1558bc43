"""The control socket: a ZeroMQ ROUTER that turns frames into requests and replies into frames.

Whatever arrives that is no request is dropped and counted; it never reaches the policy. A peer of
another major version gets one clear answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import structlog
import zmq
import zmq.asyncio
from pydantic import TypeAdapter, ValidationError

from cachecd_client import protocol

# Validates what comes in from outside; the client's dataclasses stay plain.
_ADAPTERS: dict[str, TypeAdapter[Any]] = {
    name: TypeAdapter(cls) for name, cls in protocol.REQUESTS.items()
}
_log = structlog.get_logger("cachecd.server")


class Server:
    """Answers requests one by one, in order of arrival, with what `answer` returns."""

    def __init__(self, endpoint: str, answer: Callable[[protocol.Request], protocol.Reply]) -> None:
        """Binds at once; zmq.ZMQError if the endpoint cannot be bound."""
        self._answer = answer
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
                    continue
                # A peer that does not read must not hold the others up.
                await self._socket.send_multipart(
                    [frames[0], b"", *protocol.encode(reply)], flags=zmq.NOBLOCK
                )
            except Exception as error:
                # One message, whatever is in it, must not silence the socket for all others.
                self.dropped += 1
                _log.warning("message dropped", why=repr(error))

    def _handle(self, frames: list[bytes]) -> protocol.Reply | None:
        if len(frames) != 4 or frames[1] != b"":
            return None
        major = protocol.major_of(frames[2])
        if major is None:
            return None
        try:
            body = json.loads(frames[3])
        except ValueError:
            return None
        if not isinstance(body, dict) or not isinstance(body.get("id"), str):
            return None
        if major != protocol.MAJOR:
            message = (
                f"this daemon speaks protocol {protocol.MAJOR}, the client speaks {major}: "
                "install cachecd and cachecd-client of the same version"
            )
            return protocol.Refused(body["id"], "version", message)
        adapter = _ADAPTERS.get(str(body.get("type")))
        if adapter is None:
            return protocol.Refused(body["id"], "bad-request", "unknown type of request")
        try:
            request = adapter.validate_json(frames[3], strict=True)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            return protocol.Refused(body["id"], "bad-request", f"{where}: {first['msg']}")
        try:
            return self._answer(request)
        except Exception:
            # One request must not end the daemon that others depend on.
            _log.exception("request failed", request=type(request).__name__)
            return protocol.Refused(
                request.id, "bad-request", "internal error; see the daemon's log"
            )

    def close(self) -> None:
        """Unbinds and frees the socket."""
        self._socket.close()
        self._context.term()
