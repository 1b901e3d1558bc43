"""Batches on their way to a device while those before them are used.

Tests have no such device: a lane that keeps a log stands for it, and at the end what a stream is asked.
"""

import contextlib

import numpy as np
import pytest
import torch

from cachecd_client.columns import Bytes
from cachecd_client.errors import CallerError, CorruptRecordError
from cachecd_client.fileset import FileSet
from cachecd_client.torch import SideStream, Torch, _side_stream
from tests.client.records import examples, write

N = 20


class Lane:
    """Sends tensors by copying them, and notes what happens to which batch, by its first label."""

    def __init__(self):
        self.log = []
        self.fails = None  # what sending this batch raises

    def send(self, batch):
        label = int(batch["label"][0])
        if isinstance(self.fails, tuple) and self.fails[0] == label:
            raise self.fails[1]
        self.log.append(("send", label))
        return {"label": batch["label"].clone()}

    def receive(self, sent):
        self.log.append(("receive", int(sent["label"][0])))
        return sent


@pytest.fixture(autouse=True)
def streams_of_this_test():
    yield
    _side_stream.cache_clear()


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "a.tfrecord", examples(range(N)))


@pytest.fixture
def lane():
    return Lane()


@pytest.fixture
def loader(path, lane):
    def make(**options):
        framework = Torch()
        framework.lane = lane
        return FileSet(path)._loader(4, framework, {"shuffle": False, **options})

    return make


def firsts(batches):
    return [int(batch["label"][0]) for batch in batches]


def test_each_batch_is_sent_before_the_one_before_is_used(loader, lane):
    for batch in loader():
        lane.log.append(("use", int(batch["label"][0])))
    sent = [("send", 0), ("send", 4), ("receive", 0), ("use", 0)]
    sent += [("send", 8), ("receive", 4), ("use", 4), ("send", 12), ("receive", 8), ("use", 8)]
    sent += [("send", 16), ("receive", 12), ("use", 12), ("receive", 16), ("use", 16)]
    assert lane.log == sent


def test_nothing_is_lost_in_any_pass(loader):
    one = loader()
    for _ in range(3):
        assert firsts(one) == [0, 4, 8, 12, 16]


@pytest.mark.parametrize("taken", [1, 2, 4, 5])
def test_the_state_counts_what_was_handed_out_and_not_what_is_under_way(loader, taken):
    one = loader()
    batches = iter(one)
    assert firsts(next(batches) for _ in range(taken)) == [0, 4, 8, 12, 16][:taken]
    assert one.position == taken
    state = one.state_dict()
    del batches  # a break
    assert one.position == taken
    again = loader()
    again.load_state_dict(state)
    assert firsts(again) == [0, 4, 8, 12, 16][taken:]


def test_a_pass_that_was_left_is_begun_anew(loader):
    one = loader()
    for batch in one:
        assert int(batch["label"][0]) == 0
        break
    assert firsts(one) == [0, 4, 8, 12, 16]


def test_batches_before_a_corrupt_record_are_handed_out(loader, path):
    data = bytearray(path.read_bytes())
    data[-8] ^= 1  # of the last record
    path.write_bytes(data)
    one = loader(on_corrupt="raise")
    found = []
    with pytest.raises(CorruptRecordError):
        found.extend(int(batch["label"][0]) for batch in one)
    assert found == [0, 4, 8, 12]
    assert one.position == 4


def test_what_sending_raises_is_raised_at_its_batchs_turn(loader, lane):
    lane.fails = 8, torch.OutOfMemoryError("no memory on the device")
    one = loader()
    found = []
    with pytest.raises(torch.OutOfMemoryError):
        found.extend(int(batch["label"][0]) for batch in one)
    assert found == [0, 4]
    lane.fails = None
    again = loader()
    again.load_state_dict(one.state_dict())
    assert firsts(again) == [8, 12, 16]


def test_an_interrupt_while_one_is_sent_leaves_at_once_and_loses_none(loader, lane):
    lane.fails = 8, KeyboardInterrupt()
    one = loader()
    batches = iter(one)
    assert firsts([next(batches)]) == [0]
    with pytest.raises(KeyboardInterrupt):
        next(batches)  # 4, for which 8 is sent
    lane.fails = None
    again = loader()
    again.load_state_dict(one.state_dict())
    assert firsts(again) == [4, 8, 12, 16]


def test_what_is_under_way_when_the_loader_is_closed_is_not_handed_out(loader):
    one = loader()
    batches = iter(one)
    next(batches)
    one.close()
    with pytest.raises(CallerError, match="this pass has ended"):
        next(batches)
    assert one.position == 1


class FakeStream:
    """What SideStream asks of a CUDA stream, and the one that is current."""

    current = "the trainer's"
    log: list  # of every tensor and stream

    def __init__(self, device):
        self.device = device

    @contextlib.contextmanager
    def entered(self):
        FakeStream.current, before = "side", FakeStream.current
        yield
        FakeStream.current = before

    def record_event(self):
        self.log.append(("event", "side"))
        return "event"

    def wait_event(self, event):
        self.log.append(("wait", FakeStream.current, event))


class Logged(torch.Tensor):
    """A tensor that notes what is done to it, and on which stream."""

    def pin_memory(self):
        FakeStream.log.append(("pin", FakeStream.current))
        return self

    def to(self, device, non_blocking):
        assert non_blocking
        FakeStream.log.append(("copy", FakeStream.current, str(device)))
        return self.clone().as_subclass(Logged)

    def record_stream(self, stream):
        FakeStream.log.append(("used on", FakeStream.current))


def test_a_cuda_device_gets_pinned_copies_on_a_side_stream_that_the_trainers_waits_for(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Stream", FakeStream)
    monkeypatch.setattr(torch.cuda, "stream", FakeStream.entered)
    monkeypatch.setattr(torch.cuda, "current_stream", FakeStream)
    FakeStream.log = log = []
    side = SideStream(torch.device("cuda:0"))
    column = Bytes(np.zeros(0, np.uint8), np.zeros(1, np.int64))
    sent = side.send({"image": torch.ones(2).as_subclass(Logged), "key": column})
    assert log == [("pin", "side"), ("copy", "side", "cuda:0"), ("event", "side")]
    log.clear()
    batch = side.receive(sent)
    assert log == [("wait", "the trainer's", "event"), ("used on", "the trainer's")]
    assert batch["image"].tolist() == [1, 1]
    assert batch["key"] is column


def test_what_is_under_way_counts_when_it_is_handed_out(loader):
    one, alone = loader(prefetch_bytes=0), loader(prefetch_bytes=0)
    alone._framework.lane = None
    for first, second in zip(one, alone, strict=True):
        assert first["label"].tolist() == second["label"].tolist()
        assert one.bytes_read == alone.bytes_read
        assert 0 <= one.queue_filled <= one.position
    assert one.queue_filled == alone.queue_filled


def test_all_loaders_copy_over_one_stream(monkeypatch):
    """Torch's allocator gives what it has freed out again on its stream alone."""
    monkeypatch.setattr(torch.cuda, "Stream", FakeStream)
    device = torch.device("cuda:7")
    assert SideStream(device)._stream is SideStream(device)._stream
    assert SideStream(torch.device("cuda:6"))._stream is not SideStream(device)._stream
