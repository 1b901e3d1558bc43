"""Ways to get training data over a slow link: download first, a stream, cachecd, litData."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from tests.bench.growth.fashion import TRAIN
from tests.bench.growth.pace import BATCH, Trainer, batches
from tests.bench.growth.policy import SimulatedCache

_FIRST = 500  # records before cachecd's first epoch
_SHUFFLED = 500  # pictures in the shuffle buffer of the stream


class Way(Protocol):
    """A way to get pictures."""

    def __call__(self, trainer: Trainer, seed: int, folder: Path) -> dict[str, float]:
        """Trains for one horizon. Returns further figures of the run; `set` is the largest set."""


@dataclass(frozen=True)
class Download:
    """Downloads a random `share` of the pictures, then trains from memory for a whole horizon."""

    share: float

    def __call__(self, trainer: Trainer, seed: int, folder: Path) -> dict[str, float]:
        chance = np.random.default_rng(seed)
        numbers = chance.permutation(TRAIN)[: round(self.share * TRAIN)].astype(np.int32)
        trainer.wait(len(numbers) / trainer.setting.link)
        while not trainer.is_over:
            for batch in batches(numbers, chance):
                if trainer.is_over:
                    break
                trainer.step(batch)
        return {"set": len(numbers), "fetched": len(numbers)}


def stream(trainer: Trainer, seed: int, folder: Path) -> dict[str, float]:
    """Each picture is trained once when it arrives, and fetched again in each pass."""
    chance = np.random.default_rng(seed)
    buffer, arrived = np.empty(0, np.int32), 0
    while not trainer.is_over:
        for batch in batches(np.arange(TRAIN, dtype=np.int32), chance):
            arrived += BATCH
            buffer = chance.permutation(np.concatenate([buffer, batch]))
            if len(buffer) >= _SHUFFLED + BATCH and not trainer.is_over:
                trainer.step(buffer[:BATCH], arrived / trainer.setting.link)
                buffer = buffer[BATCH:]
    return {"set": 0, "fetched": trainer.now * trainer.setting.link}


@dataclass(frozen=True)
class Cached:
    """cachecd's policy, with room for `share` of the pictures."""

    share: float

    def __call__(self, trainer: Trainer, seed: int, folder: Path) -> dict[str, float]:
        cache = SimulatedCache(self.share, _FIRST, seed, trainer.setting.link)
        chance = np.random.default_rng(seed)
        most = epochs = 0
        while not trainer.is_over:
            numbers = cache.next_epoch(trainer.now)
            trainer.now = max(trainer.now, cache.now)  # the first epoch waits for its set
            most, epochs = max(most, len(numbers)), epochs + 1
            for batch in batches(numbers, chance):
                if trainer.is_over:
                    break
                trainer.step(batch)
                cache.fetch_until(trainer.now)
        return {"set": most, "epochs": epochs, "fetched": cache.num_fetched}


@dataclass(frozen=True)
class LitData:
    """litData's StreamingDataset over chunks that were made and uploaded before the clock starts.

    litData runs for real: it decides which chunk it downloads, keeps and deletes, and the order of the
    pictures. The time is simulated: chunks arrive one after another at the link's rate without a pause,
    and a batch starts when its chunks have arrived. `share`: of all bytes, as `max_cache_size`; None: no
    limit.
    """

    share: float | None

    def __call__(self, trainer: Trainer, seed: int, folder: Path) -> dict[str, float]:
        from litdata import StreamingDataLoader, StreamingDataset

        from tests.bench.growth import litdata_chunks as chunks

        size = chunks.make(folder / "chunks")
        downloads = chunks.recorded()
        dataset = StreamingDataset(
            f"local:{folder / 'chunks'}",
            str(folder / "cache"),
            shuffle=True,
            drop_last=True,
            seed=seed,
            max_cache_size=None if self.share is None else int(self.share * size),
            batch_decode=BATCH,
            item_shuffle_window=BATCH,
        )
        loader = StreamingDataLoader(
            dataset, batch_size=BATCH, drop_last=True, collate_fn=chunks.numbers_of
        )
        while not trainer.is_over:
            for numbers in loader:
                needed = max(downloads.number_of(chunk) for chunk in set(numbers // chunks.SIZE))
                trainer.step(numbers, needed * chunks.SIZE / trainer.setting.link)
                if trainer.is_over:
                    break
        fetched = len(downloads.names) * chunks.SIZE
        return {"set": TRAIN if self.share is None else self.share * TRAIN, "fetched": fetched}
