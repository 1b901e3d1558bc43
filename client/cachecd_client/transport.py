"""Sends requests to the daemon and receives their replies."""

from __future__ import annotations

import contextlib
import math
import os
import socket
import stat
import time
from collections.abc import Mapping
from typing import Self

import zmq

from cachecd_client.errors import (
    CallerError,
    DaemonUnreachableError,
    LeaseLostError,
    ProtocolVersionError,
    RequestError,
    SchemaError,
    SplitChangedError,
    UnknownDatasetError,
    UnknownKeyError,
    WorldError,
)
from cachecd_client.protocol import (
    ANSWERS,
    MAJOR,
    MAX_REPLY_BYTES,
    VERSION_FRAME,
    Refused,
    Reply,
    Request,
    decode_reply,
    encode,
    major_of,
)
from cachecd_client.sockets import MAX_PATH, default_endpoint, path_length, peer_pid

_FIRST_PATIENCE = 1.0  # seconds until a request is sent again; doubles up to _LAST_PATIENCE
_LAST_PATIENCE = 8.0
_NOTIFY_WITHIN = 200  # milliseconds
_PROBE_PAUSE = 0.05  # seconds between two probes of a socket without a listening process

_REFUSALS: dict[str, type[CallerError] | type[WorldError]] = {
    "unknown-dataset": UnknownDatasetError,
    "unknown-key": UnknownKeyError,
    "bad-request": RequestError,
    "version": ProtocolVersionError,
    "lease-lost": LeaseLostError,
    "impossible": RequestError,
    "split-changed": SplitChangedError,
    "contradicted": SchemaError,
}


def endpoint_of(target: str | os.PathLike[str] | None, environ: Mapping[str, str]) -> str:
    """Returns the address of the socket: `target`, or by default the address in the environment."""
    named = os.fspath(target) if target is not None else environ.get("CACHECD_ENDPOINT", "")
    named = named or default_endpoint(environ)
    return named if "://" in named else f"ipc://{named}"


class Transport:
    """The connection to one daemon. No socket stays open between conversations.

    Safe to use from any thread, in forked children, and pickled, because each conversation opens a socket.
    Opening takes about a millisecond, and an epoch has few conversations. An open socket would keep two
    threads of ZeroMQ in the trainer, and forks of a process with threads are unsafe.
    """

    def __init__(self, endpoint: str) -> None:
        """`endpoint`: the socket's address, ``ipc://PATH``. CallerError for any other text."""
        self.endpoint = endpoint
        self.path = endpoint.removeprefix("ipc://")
        if self.path == endpoint or not self.path:
            raise CallerError(
                f"endpoint {endpoint!r}: expected the address of a Unix socket, ipc://PATH"
            )
        if path_length(self.path) > MAX_PATH:
            raise CallerError(
                f"endpoint {endpoint!r}: its path has {path_length(self.path)} bytes, expected at "
                f"most {MAX_PATH}: choose a shorter path"
            )

    def ask(self, request: Request, timeout: float) -> Reply:
        """Returns the daemon's reply. A Refused raises the error for its code. DaemonUnreachableError if no
        reply arrives within `timeout` seconds; ProtocolVersionError if the peer has another version, or is
        not a daemon."""
        with Conversation(self) as conversation:
            return conversation.ask(request, timeout)

    def decode(self, frames: list[bytes], request: Request) -> Reply:
        try:
            reply = decode_reply(frames)
            if not isinstance(reply, (Refused, *ANSWERS[type(request)])):
                raise ValueError(f"{type(reply).__name__} does not answer {type(request).__name__}")
            # A daemon cannot read the id in a request of another version.
            if reply.id != request.id and not (isinstance(reply, Refused) and not reply.id):
                raise ValueError(f"it answers request {reply.id[:40]!r}, expected {request.id!r}")
            return reply
        except ValueError as error:
            major = major_of(frames[0]) if frames else None
            sent = frames[0][:40].decode(errors="replace") if frames else "nothing"
            remedy = "install the same release of cachecd and cachecd-client"
            if major is None:
                what = (
                    f"the program that answers on {self.endpoint} is not cachecd (it sent {sent!r})"
                )
                remedy = "set $CACHECD_ENDPOINT to the socket of the daemon"
            elif major == MAJOR:
                what = (
                    f"this client cannot read the answer of the daemon on {self.endpoint} ({error})"
                )
            else:
                own = VERSION_FRAME.decode()
                what = f"the daemon on {self.endpoint} speaks {sent!r}, this client {own!r}"
            raise ProtocolVersionError(f"{what}: {remedy}") from error

    def await_owner(self, timeout: float) -> None:
        """Waits until a process listens on the socket; after a daemon was killed, no process listens.
        DaemonUnreachableError after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while not self._probe()[0]:
            if time.monotonic() >= deadline:
                raise DaemonUnreachableError(self.diagnosis(timeout))
            time.sleep(_PROBE_PAUSE)

    def diagnosis(self, timeout: float) -> str:
        within = f" within {timeout:.3g} s" if timeout else ""
        return (
            f"no daemon answered on {self.endpoint}{within}: {self._probe()[1]}. Start one with "
            "`cachecd run CONFIG`, or set $CACHECD_ENDPOINT to its socket"
        )

    def _probe(self) -> tuple[bool, str]:
        """Returns whether a process listens on the socket, and what a plain connection to it shows."""
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1.0)
            try:
                probe.connect(self.path)
                pid = f" {peer_pid(probe)}".removesuffix(" 0")
                return True, f"a process{pid} listens there, but does not answer"
            except FileNotFoundError:
                return False, "the socket does not exist"
            except ConnectionRefusedError:
                return False, _refusal(self.path)
            except PermissionError:
                return False, "permission denied: join the group that owns the socket's directory"
            except OSError as error:
                return True, error.strerror or str(error)


class Conversation:
    """A context manager in which one thread sends requests over one socket. It repeats a request with the
    same id until a reply or the timeout, each time on a new socket (the "Lazy Pirate" pattern of the ZeroMQ
    guide). So a request survives a restart of the daemon."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._socket: zmq.Socket[bytes] | None = None

    def ask(self, request: Request, timeout: float) -> Reply:
        deadline = time.monotonic() + timeout
        patience = _FIRST_PATIENCE
        frames: list[bytes] | None = None
        while frames is None:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise DaemonUnreachableError(self._transport.diagnosis(timeout))
            frames = self._exchange(encode(request), min(patience, remaining))
            patience = min(2 * patience, _LAST_PATIENCE)
        reply = self._transport.decode(frames, request)
        if isinstance(reply, Refused):
            raise _REFUSALS.get(reply.code, RequestError)(reply.message)
        return reply

    def notify(self, request: Request) -> None:
        """Sends a request without waiting for its reply, and ends the conversation. Never fails."""
        with contextlib.suppress(zmq.ZMQError):
            socket = self._open()
            socket.linger = socket.sndtimeo = _NOTIFY_WITHIN
            socket.send_multipart(encode(request))
        self.close()

    def _exchange(self, frames: list[bytes], timeout: float) -> list[bytes] | None:
        milliseconds = math.ceil(timeout * 1000)
        answer = None
        try:
            socket = self._open()
            # Sending blocks if the peer does not use ZeroMQ.
            socket.sndtimeo = milliseconds
            socket.send_multipart(frames)
            if socket.poll(milliseconds):
                answer = socket.recv_multipart()
        except zmq.Again:
            pass
        except zmq.ZMQError as error:  # for example, too many files are open
            raise DaemonUnreachableError(
                f"no socket to {self._transport.endpoint}: {error}"
            ) from error
        finally:
            if answer is None:
                self.close()
        return answer

    def _open(self) -> zmq.Socket[bytes]:
        if self._socket is None:
            self._context = zmq.Context()
            self._socket = socket = self._context.socket(zmq.REQ)
            socket.linger = 0
            socket.reconnect_ivl = 20  # ms; the default of 100 delays the start of every daemon
            socket.reconnect_ivl_max = 200
            socket.maxmsgsize = MAX_REPLY_BYTES
            socket.connect(self._transport.endpoint)
        return self._socket

    def close(self) -> None:
        """Closes the socket. Idempotent; the next request opens a new socket."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            if self._context is not None:
                self._context.term()
        # After an interrupt while the socket was made, term() would wait for that socket forever. So the
        # context is only dropped; it ends when the traceback of the interrupt is dropped.
        self._context = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _refusal(path: str) -> str:
    try:
        if stat.S_ISSOCK(os.stat(path).st_mode):
            return "the socket exists, but its daemon has ended"
    except OSError:
        return "the socket was just removed"
    return "the path is not a socket"
