"""The daemon as a process: what it owns, what ends it, and the trainer it may run.

A start that fails leaves nothing half-made on disk. SIGTERM and SIGINT drain, a trainer having its time to
end (trainer.py); the end of the
lifeline (a pipe that a trainer's own daemon inherits) does the same, so that such a daemon never
outlives its trainer, however that dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog
import zmq

from cachecd import preflight
from cachecd.config import Config
from cachecd.disk.filesystem import refuse_network_filesystem, refusing
from cachecd.errors import DiskError, SourceError
from cachecd.eventloop import Daemon
from cachecd.executors.local import LocalExecutor
from cachecd.firstlook import check_side, check_sources
from cachecd.layout import Layout
from cachecd.notify import ServiceManager
from cachecd.ownership import claim_directory, claim_socket, open_socket_to_group
from cachecd.server import Server
from cachecd.trainer import Stop, run_trainer

# SIGTERM drains within 10 s: shards nearly done are finished, the rest is made again on restart.
DRAIN_SECONDS = 3.0

_log = structlog.get_logger("cachecd")


@dataclass(frozen=True, slots=True)
class Options:
    """How this start differs from the configuration."""

    offline: bool = False
    lifeline: int | None = None  # a pipe's read end
    trainer: Sequence[str] = ()


def run(config: Config, options: Options, reload: Callable[[], Config]) -> int:
    """Runs until told to stop; the trainer's exit code, or 0.

    CallerError or WorldError, with nothing left on disk that was not there, if it cannot start.
    `reload` reads the configuration again, on SIGHUP.
    """
    # One that comes before the daemon can reload is no reason to end.
    signal.signal(signal.SIGHUP, lambda *_: None)
    # The group may read what is cached, nobody else anything; samplers inherit this.
    umask = os.umask(0o027)
    figures = preflight.figures(config)
    refuse_network_filesystem(config.cache.dir)
    socket = Path(config.server.endpoint.removeprefix("ipc://"))
    with contextlib.ExitStack() as owned:
        owned.enter_context(_made(socket.parent, make_private_directory))
        owned.enter_context(claim_socket(socket))
        made = owned.enter_context(_made(config.cache.dir, _make_directory))
        layout = Layout(config.cache.dir)
        owned.enter_context(claim_directory(layout.lock, config.server.endpoint))
        executor = preflight.executor_of(config)
        owned.callback(executor.abandon)
        if not options.offline:
            if preflight.is_empty(config):
                # They import while we look. Beside a recovery they would only take a core from it, and
                # nobody waits for them: measured, 0.1 s of 1.7 with 100,000 shards.
                executor.launch()
                for name, what in check_sources(config).items():
                    _log.warning("source looked at", dataset=name, what=what)
            else:
                for name in preflight.unlisted_sides(config):
                    _check_side(config, name)
        with refusing(f"cannot prepare {layout.root}"):
            for directory in (layout.shards, layout.tmp, layout.leases, layout.index):
                directory.mkdir(mode=0o750, exist_ok=True)
        made.keep()
        return asyncio.run(_serve(config, figures, executor, options, socket, reload, umask))


def _check_side(config: Config, name: str) -> None:
    try:
        check_side(config, name)
    except SourceError as error:  # what is cached is served all the same
        _log.warning("source not looked at", dataset=name, why=str(error))


class _Made:
    """A directory that a failing start removes again, if the start made it."""

    def __init__(self) -> None:
        self.keeping = False

    def keep(self) -> None:
        self.keeping = True


@contextlib.contextmanager
def _made(path: Path, make: Callable[[Path], None]) -> Iterator[_Made]:
    new = [p for p in (path, *path.parents) if not p.exists()]
    made = _Made()
    try:
        make(path)
        yield made
    finally:
        if not made.keeping:
            for directory in new:
                with contextlib.suppress(OSError):  # not empty: somebody uses it
                    directory.rmdir()


def _make_directory(path: Path) -> None:
    with refusing(f"cannot create cache.dir {path}"):
        path.mkdir(mode=0o750, parents=True, exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK):
            raise DiskError(f"cache.dir {path} cannot be written by uid {os.geteuid()}")


async def _serve(
    config: Config,
    figures: preflight.Figures,
    executor: LocalExecutor,
    options: Options,
    socket: Path,
    reload: Callable[[], Config],
    umask: int,
) -> int:
    manager = ServiceManager()
    daemon = Daemon(config, figures, executor, manager.starting, offline=options.offline)
    try:
        server = Server(config.server.endpoint, daemon.answer)
    except zmq.ZMQError as error:
        await daemon.stop(0)
        raise DiskError(f"cannot listen on {config.server.endpoint}: {error}") from error
    stop = Stop()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.ask)
    loop.add_signal_handler(signal.SIGINT, stop.interrupt)
    loop.add_signal_handler(signal.SIGHUP, _reloaded, daemon, manager, reload)
    if options.lifeline is not None:
        loop.add_reader(options.lifeline, stop.asked.set)
    serving = asyncio.ensure_future(server.serve())
    serving.add_done_callback(
        lambda _: stop.asked.set()
    )  # without a socket the daemon is of no use
    watching = asyncio.ensure_future(_watchdog(manager))
    code = 0
    try:
        open_socket_to_group(socket)
        await daemon.start()
        manager.ready()
        _log.info("ready", endpoint=config.server.endpoint, cache=str(config.cache.dir))
        if options.trainer:
            code = await run_trainer(options.trainer, config.server.endpoint, stop, umask)
        else:
            await stop.asked.wait()
    finally:
        manager.stopping()
        _log.info("stopping")
        if options.lifeline is not None:
            loop.remove_reader(options.lifeline)
        for task in (serving, watching):
            task.cancel()
        for ended in await asyncio.gather(serving, watching, return_exceptions=True):
            if isinstance(
                ended, Exception
            ):  # whoever keeps the daemon running is to start it again
                _log.error("ended otherwise than thought", exc_info=ended)
                code = 1
        try:
            await daemon.stop(DRAIN_SECONDS)
        finally:
            server.close()
            socket.unlink(missing_ok=True)
    return code


def _reloaded(daemon: Daemon, manager: ServiceManager, reload: Callable[[], Config]) -> None:
    manager.reloading()
    try:
        daemon.reconfigure(reload)
    except Exception:
        _log.exception("configuration not reloaded")
    finally:
        manager.ready()


async def _watchdog(manager: ServiceManager) -> None:
    while manager.watchdog_interval:
        try:
            manager.watchdog()
        except Exception:  # else it would be taken for dead
            _log.exception("the service manager was not told")
        await asyncio.sleep(manager.watchdog_interval)


def make_private_directory(path: Path) -> None:
    """Makes `path` (and its parents) if need be, for us and our group alone: mode 0750.

    DiskError if it cannot be made, or if what is there belongs to somebody else or is open to
    all: whoever can reach the control socket can read everything cached.
    """
    with refusing(
        f"cannot create the directory {path} for the socket (set server.endpoint, or XDG_RUNTIME_DIR, to a "
        "place of yours)"
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.mkdir(0o750)
            # The umask may have taken the group's bits away; a set-group-ID parent's stay.
            path.chmod(stat.S_IMODE(path.stat().st_mode) & stat.S_ISGID | 0o750)
        except FileExistsError:
            pass
        found = path.stat()
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISDIR(found.st_mode):
        raise DiskError(f"{path} is not a directory; the control socket needs one of its own")
    if found.st_uid != os.geteuid():
        raise DiskError(
            f"{path} belongs to uid {found.st_uid}, not to us (uid {os.geteuid()}); put the socket "
            f"into a directory of its own, for example {path / 'cachecd' / 'cachecd.sock'}"
        )
    if mode & 0o027:
        raise DiskError(
            f"{path} has mode {mode:04o}, expected at most 0750; put the socket into a "
            f"directory of its own, or run: chmod 750 {path}"
        )
