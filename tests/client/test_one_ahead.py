"""Batches on their way to a device while those before them are used.

Tests have no such device: a lane that keeps a log stands for it, and at the end what a stream is asked.
"""

import contextlib
import itertools

import numpy as np
import pytest

from cachecd_client.files.file_set import FileSet
from cachecd_client.loader.columns import Bytes
from tests.client.records import examples, write
from tests.frameworks import Lazy, torch

framework = Lazy("cachecd_client.frameworks.torch")

N = 20


class Lane:
    """Sends tensors by copying them, and notes what happens to which batch, by its first label."""

    is_busy = False

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
    from cachecd_client.frameworks.torch import _side_stream

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
        made = framework.Torch()
        made.lane = lane
        return FileSet(path)._loader(4, made, {"shuffle": False, **options})

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


class Recorded:
    """A stream or an event of torch, which notes in `log` what is asked of it."""

    def __init__(self, log, name):
        self.log, self.name = log, name

    def wait_stream(self, other):
        self.log.append((self.name, "waits for", other.name))

    wait_event = wait_stream

    def record(self, stream):
        self.log.append((stream.name, "records", self.name))

    def synchronize(self):
        self.log.append(("the loop", "waits for", self.name))


class Recorder:
    """What SideStream asks of torch's streams and events, in the order in which it asks."""

    def __init__(self):
        self.log = []
        self.current = self.stream("the trainer's")
        self.copies = itertools.count(1)

    def stream(self, name):
        return Recorded(self.log, name)

    @contextlib.contextmanager
    def entered(self, stream):
        self.current, before = stream, self.current
        yield
        self.current = before

    def event(self, blocking):
        assert blocking  # the processor is for the reading threads meanwhile
        return Recorded(self.log, f"copy {next(self.copies)}")

    def note(self, what):
        self.log.append((self.current.name, what))


@pytest.fixture
def recorder(monkeypatch):
    recorder = Recorder()

    class Logged(torch.Tensor):
        def pin_memory(self):
            recorder.note("pins")
            return self

        def copy_(self, other, non_blocking):
            assert non_blocking
            recorder.note("copies")
            return super().copy_(other)

        def record_stream(self, stream):
            recorder.log.append((stream.name, "keeps"))

    empty_like = torch.empty_like

    def taken(like, *, device):
        recorder.note(f"takes memory of {device}")
        return empty_like(like).as_subclass(Logged)

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: recorder.stream("side"))
    monkeypatch.setattr(torch.cuda, "stream", recorder.entered)
    monkeypatch.setattr(torch.cuda, "Event", recorder.event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: recorder.current)
    monkeypatch.setattr("torch.empty_like", taken)
    recorder.batch = lambda: {"image": torch.ones(2).as_subclass(Logged)}
    return recorder


def test_a_copy_waits_for_the_trainers_stream_behind_taking_its_memory(recorder):
    side = framework.SideStream(torch.device("cuda:0"))
    column = Bytes(np.zeros(0, np.uint8), np.zeros(1, np.int64))
    sent = side.send(recorder.batch() | {"key": column})
    assert recorder.log == [
        ("side", "pins"),
        ("side", "takes memory of cuda:0"),
        ("side", "waits for", "the trainer's"),
        ("side", "copies"),
        ("side", "records", "copy 1"),
    ]
    recorder.log.clear()
    batch = side.receive(sent)
    assert recorder.log == [("the trainer's", "waits for", "copy 1")]  # and keeps no memory
    assert batch["image"].tolist() == [1, 1]
    assert batch["key"] is column


def test_the_loop_pins_no_third_batch_before_the_first_copy_is_done(recorder):
    side = framework.SideStream(torch.device("cuda:0"))
    for _ in range(5):
        side.receive(side.send(recorder.batch()))
    loop = [entry for entry in recorder.log if entry[1] == "pins" or entry[0] == "the loop"]
    pins = ("side", "pins")
    waits = [("the loop", "waits for", f"copy {number}") for number in (1, 2, 3)]
    assert loop == [pins, pins, waits[0], pins, waits[1], pins, waits[2], pins]


def test_a_batch_received_on_another_stream_keeps_its_memory_for_that_stream(recorder):
    side = framework.SideStream(torch.device("cuda:0"))
    with recorder.entered(recorder.stream("another")):
        sent = side.send(recorder.batch())
        assert recorder.log[2:4] == [
            ("side", "waits for", "the trainer's"),
            ("side", "waits for", "another"),
        ]
        recorder.log.clear()
        side.receive(sent)
    assert recorder.log == [("another", "waits for", "copy 1"), ("another", "keeps")]
