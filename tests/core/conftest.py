"""What tests of a BatchReader and its process share."""

import gc

import pytest

from tests.core.processes import reader_threads, until
from tests.core.shards import example, write


@pytest.fixture
def no_thread_is_left():
    gc.collect()
    before = len(reader_threads())
    yield
    gc.collect()
    until(lambda: len(reader_threads()) <= before)


@pytest.fixture(scope="module")
def shard(tmp_path_factory):
    path = tmp_path_factory.mktemp("process") / "a"
    return str(write(path, [example(i) for i in range(200)]))
