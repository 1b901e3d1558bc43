"""What is done to a stage while it runs. Each injection ends by itself, within a few seconds."""

from __future__ import annotations

import errno
import os
import random
import signal
import time
from collections.abc import Callable

from tests.e2e.daemons import descendants
from tests.soak.stage import Stage

Injection = Callable[[Stage, random.Random], str]


def kill_the_daemon(stage: Stage, chance: random.Random) -> str:
    stage.daemon.kill()
    away = chance.choice([0.0, 0.5, 3.0])
    time.sleep(away)
    stage.daemon.start()
    return f"back after {away:g} s"


def restart_the_daemon(stage: Stage, chance: random.Random) -> str:
    stage.daemon.terminate()
    stage.daemon.start()
    return ""


def stop_the_daemon_for_a_while(stage: Stage, chance: random.Random) -> str:
    seconds = chance.uniform(0.2, 4.0)
    os.kill(stage.daemon.pid, signal.SIGSTOP)
    time.sleep(seconds)
    os.kill(stage.daemon.pid, signal.SIGCONT)
    return f"{seconds:.1f} s"


def kill_a_sampler(stage: Stage, chance: random.Random) -> str:
    found = descendants(stage.daemon.pid)
    if not found:
        return "there was none"
    pid = chance.choice(found)
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return "it was gone"
    return ""


def kill_a_job(stage: Stage, chance: random.Random) -> str:
    job = chance.choice([rank.job for rank in stage.ranks])
    ranks = [rank for rank in stage.ranks if rank.job == job]
    for rank in ranks:
        rank.kill()
    for rank in ranks:
        rank.start()
    return job


def stop_a_trainer_for_a_while(stage: Stage, chance: random.Random) -> str:
    rank = chance.choice(stage.ranks)
    assert rank.process is not None
    rank.process.send_signal(signal.SIGSTOP)
    time.sleep(chance.uniform(0.5, 3.0))
    rank.process.send_signal(signal.SIGCONT)
    return rank.job


def flip_a_bit(stage: Stage, chance: random.Random) -> str:
    """In a shard or a sidecar, whether a lease names it or not."""
    files = stage.shards(chance.choice(["train", "train", "train", "eval"]))
    if not files:
        return "there was none"
    path = chance.choice(files)
    try:
        with path.open("r+b") as file:
            at = chance.randrange(path.stat().st_size)
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 1 << chance.randrange(8)]))
    except (FileNotFoundError, ValueError, IndexError):
        return "it was gone"
    return f"{path.parent.name}/{path.name}, byte {at}"


def cut_a_file_short(stage: Stage, chance: random.Random) -> str:
    """A shard or a sidecar, while it is being read or not."""
    files = stage.shards()
    if not files:
        return "there was none"
    path = chance.choice(files)
    try:
        length = chance.randrange(path.stat().st_size)
        os.truncate(path, length)
    except FileNotFoundError:
        return "it was gone"
    return f"{path.parent.name}/{path.name}, to {length} bytes"


def change_the_configuration(stage: Stage, chance: random.Random) -> str:
    rules = {"per_epoch": chance.choice(["1MiB", "3MiB"]), "refresh": chance.choice([0.25, 0.5])}
    train = stage.daemon.document["datasets"]["train"]
    train["grow"]["per_epoch"] = rules["per_epoch"]
    train["evict"] = {"refresh": rules["refresh"]}
    stage.daemon.write_config()
    os.kill(stage.daemon.pid, signal.SIGHUP)
    return str(rules)


# (operation, where below cache.dir, errno): what disks do.
_DISK = [
    ("write", "*.new", errno.ENOSPC),
    ("write", "*.new", errno.EIO),
    ("allocate", "*.new", errno.ENOSPC),
    ("create", "*.new", errno.ENOSPC),
    ("sync", "*.new*", errno.EIO),
    ("sync", "*/shards", errno.EIO),
    ("rename", "*/shards/*", errno.EIO),
    ("unlink", "*/shards/*", errno.EIO),
    ("link", "*/shards/*", errno.EIO),
    ("*", "*/listing.sqlite*", errno.EIO),
    ("write", "*/listing.sqlite*", errno.ENOSPC),
    ("*", "*/state.json*", errno.EIO),
    ("create", "leases/*", errno.ENOSPC),
    ("rename", "leases/*", errno.EIO),
    ("sync", "leases*", errno.EIO),
    ("create", "*", errno.EROFS),
    ("*", "*", errno.EIO),
]


def fail_the_disk_for_a_while(stage: Stage, chance: random.Random) -> str:
    operation, where, code = chance.choice(_DISK)
    with stage.disk.failing(operation, f"{stage.daemon.cache}/{where}", code):
        time.sleep(chance.uniform(0.5, 3.0))
    return f"{operation} {where}: {errno.errorcode[code]}"


def break_all_connections(stage: Stage, chance: random.Random) -> str:
    stage.link.break_all()
    return ""


def take_the_store_away_for_a_while(stage: Stage, chance: random.Random) -> str:
    seconds = chance.uniform(0.5, 5.0)
    stage.link.down()
    time.sleep(seconds)
    stage.link.up()
    return f"{seconds:.1f} s"


# With how often each is done, in proportion.
ALL: dict[Injection, int] = {
    kill_the_daemon: 3,
    restart_the_daemon: 1,
    stop_the_daemon_for_a_while: 1,
    kill_a_sampler: 3,
    kill_a_job: 2,
    stop_a_trainer_for_a_while: 1,
    flip_a_bit: 5,
    cut_a_file_short: 1,
    fail_the_disk_for_a_while: 4,
    change_the_configuration: 1,
    break_all_connections: 2,
    take_the_store_away_for_a_while: 1,
}
