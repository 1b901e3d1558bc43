"""What must hold when the faults are over: nothing lost, nothing altered, nothing left behind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cachecd_client import FileSet
from cachecd_client._core import Sidecar, scan
from cachecd_client.errors import CorruptError
from tests.e2e.daemons import alive, descendants, wait_until
from tests.e2e.inventory import blocks, inventory, repeated
from tests.soak.records import fault_of
from tests.soak.stage import LIMIT, Stage


def judge(stage: Stage) -> list[str]:
    """Ends the jobs and the daemon; everything that is wrong, a line each."""
    wrong: list[str] = []
    stage.finish_jobs()
    for rank in stage.ranks:
        wrong += [f"a rank of {rank.job} ended with {code}" for code in rank.ended]
        for line in rank.lines():
            wrong += [f"{rank.job}, epoch {line['epoch']}: {w}" for w in line.get("wrong", ())]
    _heal(stage)
    if not _grows(stage):
        wrong.append(
            f"train has only {len(_shards(stage, 'train'))} shards: it does not grow any more"
        )
    _heal(stage)
    status = stage.daemon.status()
    wrong += _of_status(status)
    processes = descendants(stage.daemon.pid)
    if code := stage.daemon.terminate():
        wrong.append(f"the daemon ended with {code}")
    wrong += [f"process {pid} is left" for pid in processes if alive(pid)]
    wrong += _of_the_disk(stage, status)
    if stage.peak.bytes > LIMIT:
        wrong.append(
            f"the cache took {stage.peak.bytes} bytes, {stage.peak.bytes - LIMIT} too many"
        )
    return wrong


def _heal(stage: Stage) -> None:
    """Reports all damage that no reader met, and waits until it has been made good."""

    def sound() -> bool:
        shards = [path for dataset in stage.objects for path in _shards(stage, dataset)]
        if not all(map(_is_sound, shards)):
            return False
        status = stage.daemon.status()
        datasets = status["datasets"].values()
        busy = any(d["making"] or d["retired_shards"] for d in datasets)
        return not (busy or status["leases"])  # one that not all ranks took stands for its grace

    stage.daemon.verify()  # also finds damage that no reader looks at, as in a sidecar's meta
    wait_until(sound, 90, "every damaged shard is found and everything made has come to rest")


def _grows(stage: Stage) -> bool:
    """Whether train has, or comes to, 20 shards: damage may have retired most of them just before."""
    with stage.daemon.connect() as cache:
        for epoch in range(40):
            if len(_shards(stage, "train")) >= 20:
                return True
            cache.acquire("train", epoch, job="verdict", timeout=30).release()
            stage.daemon.settle()
    return False


def _shards(stage: Stage, dataset: str) -> list[Path]:
    return [path for path in stage.shards(dataset) if path.suffix == ".tfrecord"]


def _is_sound(path: Path) -> bool:
    try:
        offsets = Sidecar.read(f"{path}.idx").offsets
        return scan(str(path), verify=True).tolist() == offsets.tolist()
    except CorruptError:
        return False
    except FileNotFoundError:
        return True  # gone meanwhile


def _of_status(status: dict[str, Any]) -> Iterator[str]:
    for name, dataset in status["datasets"].items():
        if dataset["skipped"]["units"]:
            yield f"{name}: objects were skipped, though none is bad: {dataset['skipped']}"
        if dataset["making"] or dataset["retired_shards"]:
            yield f"{name} does not come to rest: {json.dumps(dataset)}"
    if status["leases"]:
        yield f"leases are left though nobody holds them: {json.dumps(status['leases'])}"
    if status["cache"]["reserved"]:
        yield f"{status['cache']['reserved']} bytes stay reserved"


def _of_the_disk(stage: Stage, status: dict[str, Any]) -> Iterator[str]:
    cache = stage.daemon.cache
    yield from (f"{name} is left" for name in stage.daemon.temporaries())
    yield from (f"leases/{path.name} is left" for path in (cache / "leases").iterdir())
    taken = sum(size for _, size in blocks(str(cache)))
    if taken > LIMIT:
        yield f"{taken} bytes are there, {taken - LIMIT} too many"
    for dataset, objects in stage.objects.items():
        shards = inventory(cache, dataset)
        yield from (f"{dataset}: unit, ordinal {pair} is there twice" for pair in repeated(shards))
        found: set[bytes] = set()
        for batch in FileSet([str(s.path) for s in shards.values()]).numpy(64, pad_last=True):
            real = batch["_valid"]
            rows = zip(batch["key"], batch["label"], batch["payload"], real, strict=True)
            for key, label, payload, valid in rows:
                if valid:
                    found.add(bytes(key))
                    if fault := fault_of(bytes(key), int(label), bytes(payload)):
                        yield f"{dataset}, on disk: {fault}"
        if dataset == "eval" and len(found) < len(objects):
            yield f"eval is pinned, but {len(objects) - len(found)} of its records are not there"
