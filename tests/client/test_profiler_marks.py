"""The ranges that a loader shows to the profilers of torch and TensorFlow."""

from tests.frameworks import tf, torch

N = 24


def test_torch_profiler_shows_each_next_of_a_loader(files):
    batches = iter(files.torch(4))
    next(batches)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(3):
            next(batches)
    next(batches)
    marks = [event for event in profiler.events() if event.name == "cachecd.next"]
    assert len(marks) == 3


def test_tensorflow_profiler_shows_each_next_of_a_loader(files, tmp_path):
    batches = iter(files.tf(4))
    next(batches)
    with tf.profiler.experimental.Profile(str(tmp_path)):
        for _ in range(3):
            next(batches)
    next(batches)
    [trace] = tmp_path.rglob("*.xplane.pb")
    assert trace.read_bytes().count(b"cachecd.next") >= 1
