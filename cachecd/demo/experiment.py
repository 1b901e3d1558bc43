"""The whole demo: a folder of images, a daemon with a smaller cache, a training loop."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from threadpoolctl import threadpool_limits

from cachecd.demo.configuration import BANDWIDTH, configuration
from cachecd.demo.disk_watch import DiskWatch
from cachecd.demo.images import SIDE, images, write_images
from cachecd.demo.interruption import Interruption
from cachecd.demo.passes import PassTimer
from cachecd.demo.report import EpochRow, Part, Setting, Summary
from cachecd.demo.trainer import BATCH, Trainer
from cachecd_client import Cache, Epoch, connect
from cachecd_client.errors import CachecdError, WorldError

_EPOCH_SECONDS = 1.0
_SEED = 17
_ROOM = 32 << 20  # it writes about 15 MiB
_LOG_LINES = 20  # of the daemon's, shown when something fails


def run(epochs: int, say: Callable[[Part], None]) -> Summary:
    """Runs the demo in a temporary directory, and passes each part of the output to `say` at once.

    Leaves no process and no file behind, even if the demo fails or is interrupted. Raises the errors of the
    daemon, the disk and `say`.
    """
    began = time.monotonic()
    with Interruption() as interruption, ExitStack() as owned, interruption.heeded():
        home = Path(owned.enter_context(tempfile.TemporaryDirectory(prefix="cachecd-demo-")))
        _check_room(home)
        # On two cores shared with samplers a step takes 0.4 ms so, and 3 to 27 ms in two threads.
        owned.enter_context(threadpool_limits(1))
        objects = images()
        store, folder, config = home / "store", home / "cache", home / "demo.yaml"
        write_images(objects, store)
        config.write_text(configuration(store, folder))
        cache = owned.enter_context(_own_daemon(config, home / "daemon.log"))
        limit = cache.status()["cache"]["limit"]
        say(
            Setting(
                directory=str(home),
                images=len(objects),
                object_bytes=sum(map(len, objects.values())),
                pixel_bytes=len(objects) * SIDE * SIDE,
                limit_bytes=limit,
                bandwidth=BANDWIDTH,
                epoch_seconds=_EPOCH_SECONDS,
            )
        )
        watch = owned.enter_context(DiskWatch(folder))
        to_see = sum(key.startswith("train/") for key in objects)
        rows = []
        for row in _rows(cache, epochs, to_see, watch, limit):
            say(row)
            rows.append(row)
            interruption.check()
        summary = Summary(
            epochs=epochs,
            seconds=time.monotonic() - began,
            most_disk_bytes=watch.most,
            limit_bytes=limit,
            measurements=watch.measurements,
            evicted_shards=rows[-1].evicted_shards,
            seen=rows[-1].seen,
            first_accuracy=rows[0].accuracy,
            last_accuracy=rows[-1].accuracy,
        )
        say(summary)
    return summary


def _check_room(directory: Path) -> None:
    if (free := shutil.disk_usage(directory).free) < _ROOM:
        raise WorldError(
            f"the demo needs {_ROOM >> 20} MiB, and {directory.parent} has {free >> 20}: "
            "choose another place with TMPDIR=DIRECTORY"
        )


def _rows(
    cache: Cache, epochs: int, to_see: int, watch: DiskWatch, limit: int
) -> Iterator[EpochRow]:
    """Trains, and yields a row after each epoch. `to_see`: the number of training images."""
    trainer = Trainer(_SEED)
    seen: set[bytes] = set()
    asked = time.monotonic()
    with cache.acquire("test") as held_out:
        for epoch in cache.epochs("train", epochs):
            waited = time.monotonic() - asked
            passes = PassTimer(_EPOCH_SECONDS)
            trainer.train(epoch, passes)
            seen |= _keys(epoch)
            read = passes.batches * BATCH * epoch.num_bytes / epoch.num_records
            yield EpochRow(
                epoch=epoch.epoch,
                files=len(epoch.files),
                records=epoch.num_records,
                seen=len(seen) / to_see,
                disk_bytes=watch.now(),
                limit_bytes=limit,
                evicted_shards=cache.status()["datasets"]["train"]["evicted_shards"],
                read_bytes_per_second=read / passes.seconds,
                waited_seconds=waited + passes.waited,
                accuracy=trainer.accuracy(held_out),
            )
            asked = time.monotonic()


def _keys(epoch: Epoch) -> set[bytes]:
    """Returns the keys of all images in the epoch's set, by one more pass that is not timed."""
    keys: set[bytes] = set()
    for batch in epoch.numpy(BATCH, features=["key"], shuffle=False, drop_last=False):
        keys.update(batch["key"])
    return keys


@contextmanager
def _own_daemon(config: Path, log: Path) -> Iterator[Cache]:
    """A session with its own daemon. Both log to `log`, so that no line breaks the table. After a failure
    the end of the log is printed, because it may have the reason."""
    # None of the user's settings for other daemons is meant for this one.
    for variable in [name for name in os.environ if name.startswith("CACHECD_")]:
        del os.environ[variable]
    client, handler = logging.getLogger("cachecd"), logging.FileHandler(log)
    client.addHandler(handler)
    client.propagate = False
    try:
        with _stderr_to(log):
            cache = connect(config)
        with cache:
            yield cache
    except CachecdError:
        lines = log.read_text(errors="replace").splitlines(keepends=True)
        sys.stderr.writelines(lines[-_LOG_LINES:])
        raise
    finally:
        client.propagate = True
        client.removeHandler(handler)
        handler.close()


@contextmanager
def _stderr_to(log: Path) -> Iterator[None]:
    """Processes started within write their stderr to `log`."""
    before = os.dup(2)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
