"""Batches of torch tensors, which share memory with the arrays or are on a device."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch.utils.dlpack import from_dlpack as _from_dlpack

from cachecd_client._core import Division
from cachecd_client.errors import CallerError, SchemaError
from cachecd_client.loader.framework import Marks, Stage, Wrap, columns, is_dense
from cachecd_client.schema import Feature, Schema

# The public function calls this function for a capsule. Each line of Python in the public function costs a
# trainer microseconds, because the trainer's step has evicted this code from the processor's caches.
from_dlpack = getattr(torch._C, "_from_dlpack", _from_dlpack)


class Torch:
    """Dense features as tensors on `device`; other features as columns, which have `to_torch()`. The
    constructor raises CallerError for a device that does not exist, so that no pass fails later."""

    name = "torch"
    # torch keeps this variable for checks that cost nothing while no profiler runs.
    marks = Marks(
        vars(torch.autograd.profiler),
        "_is_profiler_enabled",
        partial(torch.autograd.profiler.record_function, "cachecd.next"),
    )

    def __init__(self, device: Any = None, channels_last: bool | Sequence[str] = False) -> None:
        try:
            # The tensor's device has a number, while "cuda" means the current device.
            self._device = torch.empty(0, device="cpu" if device is None else device).device
        except (
            AssertionError,
            RuntimeError,
            TypeError,
        ) as error:  # AssertionError: no CUDA in torch
            raise CallerError(f"device={device!r}: {error}") from error
        self.lane: Stage | None = SideStream(self._device) if self._device.type == "cuda" else None
        self.copies = self._device.type not in ("cpu", "cuda")
        self._channels_last: bool | frozenset[str]
        if isinstance(channels_last, bool):
            self._channels_last = channels_last
        elif isinstance(channels_last, str) or not all(isinstance(n, str) for n in channels_last):
            raise CallerError(
                f"channels_last={channels_last!r}, expected True, False or a list of features"
            )
        else:
            self._channels_last = frozenset(channels_last)

    def wrap(self, feature: Feature, made: bool = False) -> Wrap:
        image = self._is_image(feature)
        if not is_dense(feature):
            return Wrap(None) if made else columns(feature)
        first: Callable[[Any], torch.Tensor] = torch.from_numpy if made else from_dlpack
        steps: list[Callable[[torch.Tensor], torch.Tensor]] = []
        if feature.dtype == "bfloat16":
            steps.append(lambda shared: shared.view(torch.bfloat16))
        if image:
            steps.append(lambda shared: shared.permute(0, 3, 1, 2))
        if self.copies:
            steps.append(lambda shared: shared.to(self._device))
        if not steps:
            return Wrap(first, dlpack=not made)  # runs no Python code for each batch

        def place(given: Any) -> torch.Tensor:
            value = first(given)
            for step in steps:
                value = step(value)
            return value

        return Wrap(place, dlpack=not made)

    def check(self, delivered: Schema, division: Division, rank: int) -> None:
        """Raises SchemaError if these features lack a feature for `channels_last`."""
        if isinstance(self._channels_last, frozenset):
            delivered.select(sorted(self._channels_last))
        elif self._channels_last and not any(map(self._is_image, delivered.features)):
            raise SchemaError(
                "channels_last=True: no feature has three axes, [height, width, channels]; the "
                f"features are {', '.join(delivered.names)}"
            )

    def _is_image(self, feature: Feature) -> bool:
        three = is_dense(feature) and len(feature.shape or ()) == 3
        if isinstance(self._channels_last, bool):
            return self._channels_last and three
        if feature.name in self._channels_last and not three:
            raise SchemaError(
                f"channels_last: feature {feature.name!r} is {feature.dtype} of shape "
                f"{feature.shape}, expected numbers of shape (height, width, channels)"
            )
        return feature.name in self._channels_last


@cache
def _side_stream(device: torch.device) -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
    """Returns the stream for copies to a device, and the current stream of the first loader. All loaders
    share the stream for copies, because torch's allocator reuses freed memory only on the same stream.
    With a stream for each loader, every epoch would allocate new memory."""
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return stream, torch.cuda.current_stream(device)


class Sent(NamedTuple):
    batch: dict[str, Any]
    copied: torch.cuda.Event


class SideStream:
    """Copies batches from pinned memory to a CUDA device, on a separate stream.

    Besides the batches that the loop keeps, at most three batches are on the device and two in pinned
    memory, however far the loop runs ahead of the device. Each copy waits for all earlier work of the
    consumer's stream, so the memory of a dropped batch is reused at once. The loop waits for the copy
    before the last copy. If another stream uses a batch, the current stream of `next()` must wait for
    that stream before the batch is dropped. Or the user must call `record_stream`.

    `record_stream` for every batch would keep the memory of each step that the loop is ahead. So it is
    called only for batches that are received on another stream than the first loader's stream, because no
    later copy waits for that stream.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream, self._home = _side_stream(device)
        self._copied: deque[torch.cuda.Event] = deque()

    @property
    def is_busy(self) -> bool:
        return bool(self._copied) and not self._copied[-1].query()  # type: ignore[no-untyped-call]

    def send(self, batch: dict[str, Any]) -> Sent:
        if len(self._copied) == 2:
            # Limits pinned memory, and keeps the loop at most about three steps ahead of the device.
            self._copied.popleft().synchronize()
        consumer = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._stream):
            pinned = {n: v.pin_memory() for n, v in batch.items() if isinstance(v, torch.Tensor)}
            # Allocates before waiting, because the steps that used this memory are already on the streams.
            for name, value in pinned.items():
                batch[name] = torch.empty_like(value, device=self._device)
            self._stream.wait_stream(self._home)
            if consumer != self._home:
                self._stream.wait_stream(consumer)
            for name, value in pinned.items():
                batch[name].copy_(value, non_blocking=True)
            copied = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            copied.record(self._stream)
        self._copied.append(copied)
        return Sent(batch, copied)

    def receive(self, sent: Sent) -> dict[str, Any]:
        # Does not wait for the whole stream, which may already copy the next batch.
        consumer = torch.cuda.current_stream(self._device)
        consumer.wait_event(sent.copied)
        if consumer != self._home:
            for value in sent.batch.values():
                if isinstance(value, torch.Tensor):
                    value.record_stream(consumer)
        return sent.batch
