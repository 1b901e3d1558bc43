"""Arrays as torch tensors over the same memory, or on a device."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.utils.dlpack import from_dlpack as _from_dlpack

from cachecd_client._core import Division
from cachecd_client.errors import CallerError, SchemaError
from cachecd_client.loader.framework import Lane, Wrap, columns, is_dense
from cachecd_client.schema import Feature, Schema

ChannelsLast: TypeAlias = bool | Sequence[str]

# What the public function calls for a capsule, without its Python around it, of which a trainer whose
# step has taken the processor's caches pays for every line.
from_dlpack = getattr(torch._C, "_from_dlpack", _from_dlpack)


class Torch:
    """Dense features as tensors on `device`; others as columns, which know `to_torch`.

    A device that there is not is a CallerError here, and not in the middle of a pass.
    """

    def __init__(self, device: Any = None, channels_last: ChannelsLast = False) -> None:
        try:
            # With its number, which "cuda" leaves to whatever device is current.
            self._device = torch.empty(0, device="cpu" if device is None else device).device
        except (AssertionError, RuntimeError, TypeError) as error:  # the first: built without CUDA
            raise CallerError(f"device={device!r}: {error}") from error
        self.lane: Lane | None = SideStream(self._device) if self._device.type == "cuda" else None
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
            return Wrap(first, dlpack=not made)  # no Python of ours for each batch

        def place(given: Any) -> torch.Tensor:
            value = first(given)
            for step in steps:
                value = step(value)
            return value

        return Wrap(place, dlpack=not made)

    def check(self, delivered: Schema, division: Division, rank: int) -> None:
        """SchemaError if a loader of these features has none that `channels_last` asks for."""
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


class _Side(NamedTuple):
    """A device's stream for copies, and the stream behind which its memory is used again."""

    stream: torch.cuda.Stream
    home: torch.cuda.Stream


@functools.cache
def _side_stream(device: torch.device) -> _Side:
    """One for all loaders: what torch's allocator has freed it gives out again on the same stream alone, so
    that with a stream for each loader every epoch would take memory of its own."""
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return _Side(stream, torch.cuda.current_stream(device))


class Sent(NamedTuple):
    batch: dict[str, Any]
    copied: torch.cuda.Event


class SideStream:
    """Copies batches to a CUDA device over a stream that does nothing else, from pinned memory.

    Three batches are on the device, and two in pinned memory, however far the loop runs ahead of the
    device: a batch is copied behind all that the consumer's stream was given before, so the memory of
    a dropped batch is used again at once; and the loop waits for the last copy but one. Batches may be
    kept, any number. What uses a batch on a stream other than the one that is current in `next()` must
    be waited for by that stream before the batch is dropped, or say so by `record_stream`.

    `record_stream` of each batch would keep memory for every step that the loop is ahead. It is for
    batches received on another stream than the first loader's alone: no later copy need wait for that
    stream, as another loader, or a later pass, may be used on yet another.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream, self._home = _side_stream(device)
        self._copied: deque[torch.cuda.Event] = deque()

    def send(self, batch: dict[str, Any]) -> Sent:
        if len(self._copied) == 2:
            # Bounds pinned memory, and how far the loop is ahead of the device, to some three steps.
            self._copied.popleft().synchronize()
        consumer = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._stream):
            pinned = {n: v.pin_memory() for n, v in batch.items() if isinstance(v, torch.Tensor)}
            # Taken before the wait: the steps that used this memory are on those streams already.
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
        # Not the whole stream: the copy of the batch that follows is in it already.
        consumer = torch.cuda.current_stream(self._device)
        consumer.wait_event(sent.copied)
        if consumer != self._home:
            for value in sent.batch.values():
                if isinstance(value, torch.Tensor):
                    value.record_stream(consumer)
        return sent.batch
