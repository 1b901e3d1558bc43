"""`cachecd fill CONFIG`: fills the cache without a trainer, then exits."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cachecd.quantities import Percent, approximate_size, parse_size_or_percent, printable
from cachecd_client.errors import CallerError

if TYPE_CHECKING:
    from cachecd.config import Config

_POLL = 0.5  # seconds
_FULL_AFTER = 5.0  # seconds without a new shard, although nothing prevents one: the cache is full
# Ctrl-C reaches the daemon and the watcher. The daemon logs the end, so the watcher ends silently.
_WATCH = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); "
    "from cachecd.cli.fill import watch; raise SystemExit(watch(float(sys.argv[1])))"
)


def command(
    config: Annotated[Path, typer.Argument(help="The YAML configuration.")],
    until: Annotated[
        str, typer.Option(metavar="PERCENT", help="The share of cache.limit at which to stop.")
    ] = "100%",
) -> int:
    """Fetch without a trainer until the cache reaches its limit, or every dataset is whole.

    grow.per_epoch and sampler.idle have no effect. Progress goes to stderr. A later `cachecd run CONFIG`
    starts with these shards. The exit code is 1 if fetching is paused, for example at the egress limit.
    """
    from cachecd.cli.run import log_to_stderr
    from cachecd.config import load, placed
    from cachecd.daemon.service import StartOptions, run

    try:
        share = parse_size_or_percent(until)
    except ValueError as error:
        raise CallerError(f"--until: {error}") from error
    if not isinstance(share, Percent):
        raise CallerError(f"--until: found {until!r}, expected a share such as 80%")
    loaded = unpaused(load(config))
    log_to_stderr(loaded.log)
    watcher = (sys.executable, "-c", _WATCH, str(share.percent / 100))
    with placed(config):
        options = StartOptions(trainer=watcher, logs_progress=False)  # the watcher prints it
        return run(loaded, options, lambda: unpaused(load(config)))


def unpaused(config: Config) -> Config:
    """Returns the configuration without the keys that let fetching wait for a trainer."""
    from cachecd.config import GrowConfig

    datasets = {
        name: dataset.model_copy(update={"grow": GrowConfig(first=dataset.grow.first)})
        for name, dataset in config.datasets.items()
    }
    sampler = config.sampler.model_copy(update={"idle": None})
    return config.model_copy(update={"datasets": datasets, "sampler": sampler})


def watch(share: float) -> int:
    """Runs as the daemon's trainer: reports progress until the cache is filled. Returns the exit code."""
    from cachecd.cli.progress import Progress
    from cachecd_client import connect

    idle_since = time.monotonic()
    with connect(timeout=30.0) as cache, Progress() as progress:
        while True:
            status = cache.status()
            now = time.monotonic()
            if any(dataset["making"] for dataset in status["datasets"].values()):
                idle_since = now
            reason, code = _end(status, share, now - idle_since)
            if reason:
                break
            progress.note(_datasets(status), status["cache"]["used"], _target(status, share))
            time.sleep(_POLL)
    used, limit = status["cache"]["used"], status["cache"]["limit"]
    filled = f"{approximate_size(used)} of {approximate_size(limit)} ({used / limit:.0%})"
    print(f"{filled}; {_datasets(status)}{reason}", file=sys.stderr, flush=True)
    return code


def _end(status: dict[str, Any], share: float, idle: float) -> tuple[str, int]:
    """Returns the reason to end now and the exit code; ("", 0) if the command continues."""
    cache, datasets = status["cache"], status["datasets"].values()
    if cache["used"] >= share * cache["limit"]:
        return f": filled to {share:.0%} of the limit", 0
    if all(dataset["whole"] for dataset in datasets):
        return ": every dataset is whole", 0
    if cache["resting"]:
        return f": fetching is paused: {cache['resting']}", 1
    stopped = cache["stopped"] or any(each["stopped"] for each in datasets)
    if idle >= _FULL_AFTER and not stopped and all(each["listed"] for each in datasets):
        return ": full", 0
    return "", 0


def _target(status: dict[str, Any], share: float) -> float:
    """Returns the bytes at which the command will end: the share of the limit, or less if all sources are
    listed and will need less."""
    cache, sources = status["cache"], 0.0
    for dataset in status["datasets"].values():
        if not dataset["whole"] and (dataset["passes"] or not dataset["listed"]):
            return float(share * cache["limit"])
        covered = 1.0 if dataset["whole"] else dataset["coverage"]
        sources += dataset["allocated"] / covered if covered else math.inf
    return float(min(share * cache["limit"], sources))


def _datasets(status: dict[str, Any]) -> str:
    cache, parts = status["cache"], list[str]()
    for name, dataset in status["datasets"].items():
        whole = ", whole" if dataset["whole"] else ""
        stopped = f", stopped: {dataset['stopped']}" if dataset["stopped"] else ""
        parts.append(f"{name}: {dataset['records']} records{whole}{stopped}")
    if cache["stopped"]:
        parts.append(f"stopped by the disk: {cache['stopped']}")
    return printable("; ".join(parts))
