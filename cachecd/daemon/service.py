"""Runs the daemon as a process: it claims cache.dir and socket, starts the trainer, and ends.

A start that fails leaves no incomplete files on disk. After SIGTERM or SIGINT the daemon drains, and gives
the trainer time to end (trainer.py). A daemon that a trainer starts for itself inherits a pipe, the
lifeline. It drains when the lifeline closes, so it never outlives its trainer.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import structlog
import zmq

from cachecd.config import Config
from cachecd.config.identity import directory_name, identity_of
from cachecd.daemon.loop import CacheLoop
from cachecd.daemon.monitoring import Monitoring
from cachecd.daemon.notify import ServiceManager
from cachecd.daemon.ownership import (
    claim_directory,
    claim_socket,
    made,
    make_cache_directory,
    make_private_directory,
    open_socket_to_group,
)
from cachecd.daemon.requests import Requests
from cachecd.daemon.rules import resolve
from cachecd.daemon.server import Server
from cachecd.daemon.status import DaemonStatus
from cachecd.daemon.trainer import Stop, run_trainer
from cachecd.daemon.trainers import Trainers, listening
from cachecd.daemon.workers import (
    executor_of,
    lister_bounds,
    lister_of,
    worker_memory,
    worker_setup,
)
from cachecd.disk.filesystem import refuse_network_filesystem
from cachecd.disk.layout import Layout
from cachecd.errors import DiskError, SourceError
from cachecd.executors import Executor
from cachecd.units.first_look import check_side, check_sources
from cachecd_client import resources
from cachecd_client.errors import CallerError
from cachecd_client.sockets import reports_of

_DRAIN = 3.0  # seconds for workers to complete their shards after SIGTERM; others are made later
_PROGRESS = 5.0  # seconds between two log lines about a slow start
_WORKER_KEYS = ("workers", "connections", "bandwidth")
# Keys of `cache`, `sampler` and `datasets` that a reload may change.
_RELOADABLE = (
    *("limit", "reserve_free", "window", "egress_limit", "idle"),
    *(*_WORKER_KEYS, "grow", "evict"),
)

_log = structlog.get_logger("cachecd")


@dataclass(frozen=True, slots=True)
class StartOptions:
    """Options of one start. They are not in the configuration."""

    offline: bool = False
    lifeline: int | None = None  # the read end of a pipe
    trainer: Sequence[str] = ()
    logs_progress: bool = True


def run(config: Config, options: StartOptions, reload: Callable[[], Config]) -> int:
    """Runs the daemon until it is stopped. Returns the trainer's exit code, or 0.

    `reload` reads the configuration again, after SIGHUP. CallerError or WorldError if the daemon cannot
    start. It then removes the directories that it created.
    """
    # A SIGHUP that arrives before the daemon can reload must not end it.
    signal.signal(signal.SIGHUP, lambda *_: None)
    # The group may read cached files, other users may not. Workers inherit this mask.
    umask = os.umask(0o027)
    limit, _ = resolve(config)
    refuse_network_filesystem(config.cache.dir)
    socket = Path(config.server.endpoint.removeprefix("ipc://"))
    with contextlib.ExitStack() as owned:
        owned.enter_context(made(socket.parent, make_private_directory))
        owned.enter_context(claim_socket(socket))
        owned.enter_context(made(config.cache.dir, make_cache_directory))
        layout = Layout(config.cache.dir)
        owned.enter_context(claim_directory(layout.lock, config.server.endpoint))
        executor = owned.enter_context(executor_of(config, options.offline))
        if not options.offline:
            _check_sources(config, layout)
        return asyncio.run(_serve(config, limit, executor, options, socket, reload, umask))


def _check_sources(config: Config, layout: Layout) -> None:
    """ConfigError or SourceError if a source cannot be used. An existing cache starts without its sources;
    only a new split is checked."""
    known, lister = set(layout.generations()), lister_of(config)
    if not known:
        check_sources(config, lister)
        return
    for name, dataset in config.datasets.items():
        if dataset.split and (name, directory_name(identity_of(dataset))) not in known:
            try:
                check_side(config, lister, name)
            except SourceError as error:  # cached shards are still served
                _log.warning("source not checked", dataset=name, why=str(error))


async def _serve(
    config: Config,
    limit: int,
    executor: Executor,
    options: StartOptions,
    socket: Path,
    reload: Callable[[], Config],
    umask: int,
) -> int:
    daemon = _Daemon(config, limit, executor, options)
    manager, stop = daemon.manager, daemon.stop
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.request)
    loop.add_signal_handler(signal.SIGINT, stop.interrupt)
    if options.lifeline is not None:
        loop.add_reader(options.lifeline, stop.requested.set)
    try:
        server = Server(config.server.endpoint, daemon.requests.handle)
    except zmq.ZMQError as error:
        raise DiskError(f"cannot listen on {config.server.endpoint}: {error}") from error
    tasks = [asyncio.ensure_future(_watchdog(manager))]
    code = 0
    reports = contextlib.ExitStack()
    try:
        open_socket_to_group(socket)
        reports.enter_context(listening(Path(reports_of(config.server.endpoint)), daemon.trainers))
        if await daemon.open():
            loop.add_signal_handler(signal.SIGHUP, daemon.reload, reload)
            tasks.append(asyncio.ensure_future(server.serve()))
            # Without its socket the daemon is useless.
            tasks[-1].add_done_callback(lambda _: stop.requested.set())
            tasks.append(asyncio.ensure_future(daemon.monitor()))
            manager.ready()
            _log.info("ready", endpoint=config.server.endpoint, cache=str(config.cache.dir))
            if options.trainer:
                code = await run_trainer(options.trainer, config.server.endpoint, stop, umask)
            else:
                await stop.requested.wait()
    finally:
        manager.stopping()
        _log.info("stopping")
        if options.lifeline is not None:
            loop.remove_reader(options.lifeline)
        for task in tasks:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(ended, Exception):  # exit with 1, so that systemd restarts the daemon
                _log.error("a task of the daemon failed unexpectedly", exc_info=ended)
                code = 1
        try:
            await daemon.close()
        finally:
            reports.close()
            server.close()
            socket.unlink(missing_ok=True)
    return code


class _Daemon:
    """The cache, with its executor, its lister and its requests."""

    def __init__(
        self, config: Config, limit: int, executor: Executor, options: StartOptions
    ) -> None:
        self.manager, self.stop = ServiceManager(), Stop()
        self._config, self._executor, self._options = config, executor, options
        self._lister = lister_of(config)
        self._cache = CacheLoop(
            *(config, limit, executor, self._lister),
            offline=options.offline,
            progress=self._progress,
            logs_progress=options.logs_progress,
        )
        self.trainers = Trainers(self._cache.timeline)
        self.requests = Requests(self._cache, self.status, self._details)
        self._may_use = _may_use(config)
        self._monitoring = Monitoring(config.server, self.status)
        self._began = self._logged_at = time.monotonic()
        self._is_open = False

    async def open(self) -> bool:
        """Opens the cache. Returns False if the daemon was stopped meanwhile."""
        try:
            await self._cache.open()
        except InterruptedError:
            return False
        self._is_open = True
        return True

    async def monitor(self) -> None:
        """Samples the status document until it is cancelled. The cache must be open."""
        await self._monitoring.run(self._cache)

    def _progress(self, text: str) -> None:
        """Reports the progress of a slow start. InterruptedError if the daemon must end."""
        if self.stop.requested.is_set():
            raise InterruptedError("stopped during the start")
        if time.monotonic() >= self._logged_at + _PROGRESS:
            self._logged_at = time.monotonic()
            self.manager.starting(text)
            _log.info("starting", progress=text)

    async def close(self) -> None:
        """Drains, then ends the workers and closes the cache."""
        deadline = time.monotonic() + _DRAIN
        if self._is_open:
            await self._cache.drain(_DRAIN)
        await self._executor.close(max(0.0, deadline - time.monotonic()))
        self._lister.close()
        if self._is_open:
            await self._monitoring.close(self._cache)
            await self._cache.close()

    def reload(self, load: Callable[[], Config]) -> None:
        """Reads the configuration again, and applies the changes. If it has a mistake, or a change that
        needs a restart, this is logged and nothing is applied."""
        self.manager.reloading()
        try:
            config = load()
            limit, _ = resolve(config)
            if changed := _needs_restart(self._config, config):
                _log.error(
                    "configuration not reloaded: restart the daemon to change these keys",
                    changed=changed,
                )
            else:
                self._cache.configure(config, limit)
                before, now = self._config.sampler, config.sampler
                is_changed = any(getattr(before, key) != getattr(now, key) for key in _WORKER_KEYS)
                if is_changed and not self._options.offline:
                    self._executor.reload(worker_setup(config), now.workers)
                    self._lister.reload(now.connections, lister_bounds(config))
                self._config, self._may_use = config, _may_use(config)
                _log.info("configuration reloaded", limit=limit)
        except (CallerError, DiskError) as error:
            _log.error("configuration not reloaded", why=str(error))
        except Exception:
            _log.exception("configuration not reloaded")
        finally:
            self.manager.ready()

    def status(self) -> dict[str, Any]:
        """Returns the status document."""
        uptime = round(time.monotonic() - self._began, 1)
        sampler = self._executor.status()
        daemon = DaemonStatus(
            os.getpid(), uptime, sampler.workers, self._options.offline, *self._may_use
        )
        trainers = self.trainers.status(time.monotonic())
        return asdict(self._cache.status(sampler, daemon, trainers))

    def _details(self) -> dict[str, Any]:
        return {"config": self._config.without_secrets(), "story": self._cache.story.whole()}


def _may_use(config: Config) -> tuple[int, int, int, int, float | None]:
    """Returns the last fields of DaemonStatus."""
    sampler, memory = config.sampler, worker_memory(config)
    may_use = resources.processors(), resources.memory(), memory
    return *may_use, sampler.connections, sampler.bandwidth


def _needs_restart(old: Config, new: Config) -> list[str]:
    """Returns the changed keys that a running daemon cannot apply."""

    def fixed(config: Config) -> dict[str, Any]:
        values = config.model_dump(mode="json", exclude={"version"})
        log = values.pop("log")
        for keys in (values["cache"], values["sampler"], *values["datasets"].values()):
            for key in _RELOADABLE:
                keys.pop(key, None)
        fixed = {f"{name}.{key}": keys[key] for name, keys in values.items() for key in keys}
        return {**fixed, "log": log}

    before, after = fixed(old), fixed(new)
    return sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))


async def _watchdog(manager: ServiceManager) -> None:
    while manager.watchdog_interval:
        manager.watchdog()
        await asyncio.sleep(manager.watchdog_interval)
