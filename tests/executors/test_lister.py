"""The lister process: what it lists, how it fails, and that nothing of it is left."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cachecd.config import SourceConfig
from cachecd.errors import ConfigError, SourceUnreachableError
from cachecd.executors.lister import ProcessLister
from cachecd.executors.process import Bounds
from cachecd.model import ObjectInfo
from cachecd.sampler.user_reader import UNSIZED
from tests.core.processes import until
from tests.executors.bench import is_alive


def source(reader: str, **options: Any) -> SourceConfig:
    keys = {"format": "python", "reader": f"tests.sampler.readers:{reader}", "options": options}
    return SourceConfig.model_validate(keys)


@pytest.fixture
def lister() -> Iterator[Callable[..., ProcessLister]]:
    made: list[ProcessLister] = []

    def make(**bounds: Any) -> ProcessLister:
        python = bounds.pop("python", None)
        made.append(ProcessLister(4, python, bounds=Bounds(**bounds)))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_what_the_process_lists_comes_in_pages_by_the_users_interpreter(lister, tmp_path):
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\necho "$*" > {tmp_path}/said\nexec {sys.executable} "$@"\n')
    script.chmod(0o755)
    names = ["a", {"name": "b\n\u202e\udce9", "size": 2**62, "label": "ü"}]
    names += [str(n) for n in range(2500)]
    pages = list(lister(python=script).units(source("Named", names=names)))
    assert [len(page) for page in pages] == [1000, 1000, 502]
    assert pages[0][:2] == [
        ObjectInfo("a", UNSIZED),
        ObjectInfo("b\n\u202e\udce9", 2**62, label="ü"),
    ]
    assert pages[2][-1].key == "2499"
    assert (tmp_path / "said").read_text() == "-m cachecd.units.lister\n"


def test_what_a_store_lists_takes_no_process(lister, tmp_path):
    (tmp_path / "a").write_bytes(b"123")
    plain = SourceConfig(url=f"file://{tmp_path}", format="files")
    pages = lister(python=tmp_path / "none").units(plain)
    assert [(u.key, u.size) for page in pages for u in page] == [("a", 3)]


def test_a_process_that_fails_says_why_after_what_it_has_listed(lister, capfd):
    for how, reason in (
        ("exit", r"units raised SystemExit: 3 \(/.*readers\.py:\d+\)"),
        ("die", r"the process that lists its units by .*readers:Broken was killed by SIGABRT"),
    ):
        with pytest.raises(SourceUnreachableError, match=reason):
            list(lister().units(source("Broken", how=how)))
    with pytest.raises(ConfigError, match=r"reader nowhere:A: cannot be imported in .*nowhere"):
        list(lister().units(SourceConfig(format="python", reader="nowhere:A")))
    keys = [u.key for page in lister().units(source("Broken", how="print")) for u in page]
    assert keys == ["a", "b", "c"]
    assert "a print\na write\n" in capfd.readouterr().err


def test_an_interpreter_that_is_none_is_told(lister, tmp_path):
    with pytest.raises(ConfigError, match=r"sampler\.python: cannot start .*/python: "):
        list(lister(python=tmp_path / "python").units(source("Counted", units=1)))
    with pytest.raises(SourceUnreachableError, match="exited with status 1"):
        list(lister(python=Path("/bin/false")).units(source("Counted", units=1)))
    echo = tmp_path / "echo"
    echo.write_text("#!/bin/sh\necho I am no lister\n")
    echo.chmod(0o755)
    with pytest.raises(SourceUnreachableError, match="wrote something that is not a message"):
        list(lister(python=echo).units(source("Counted", units=1)))


def test_endless_line_is_refused(lister, tmp_path, monkeypatch):
    monkeypatch.setattr("cachecd.executors.process.MAX_FRAME", 1 << 20)
    zeros = tmp_path / "zeros"
    zeros.write_text("#!/bin/sh\nexec cat /dev/zero\n")
    zeros.chmod(0o755)
    with pytest.raises(SourceUnreachableError, match="wrote something that is not a message"):
        list(lister(python=zeros).units(source("Counted", units=1)))


def test_one_that_hangs_or_grows_is_ended_with_all_that_it_started(lister, tmp_path):
    pids = tmp_path / "pids"
    with pytest.raises(SourceUnreachableError, match=r"was silent for 1 s .*sampler.unit_timeout"):
        list(lister(silence=1).units(source("Broken", how="hang", file=str(pids))))
    until(lambda: not any(is_alive(int(pid)) for pid in pids.read_text().split()))
    with pytest.raises(SourceUnreachableError, match=r"took more than 200 MiB .*sampler.memory"):
        list(lister(memory=200 << 20).units(source("Broken", how="grow")))


def test_a_listing_that_is_left_leaves_no_process(lister, tmp_path):
    """By whoever asked, by its thread's end, or by the end of the lister."""
    pages = lister().units(source("Counted", units=1_000_000))
    next(pages)
    [process] = pages.gi_yieldfrom.gi_frame.f_locals["self"]._running
    pages.close()
    assert not is_alive(process.pid)

    one, pids = lister(), tmp_path / "pids"
    raised: list[BaseException] = []

    def ask() -> None:
        try:
            list(one.units(source("Broken", how="hang", file=str(pids))))
        except SourceUnreachableError as error:
            raised.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    until(lambda: pids.exists() and pids.read_text())
    one.close()
    thread.join(20)
    assert raised
    # They are killed by then; how soon the kernel is done with one is its own affair.
    until(lambda: not any(is_alive(int(pid)) for pid in pids.read_text().split()))
    with pytest.raises(SourceUnreachableError, match="the daemon ends"):
        list(one.units(source("Counted", units=1)))


def test_what_a_killed_daemon_left_ends_with_it_or_at_the_next_start(tmp_path):
    pids = tmp_path / "pids"
    code = (
        "import sys\n"
        "from tests.executors.test_lister import ProcessLister, source\n"
        "list(ProcessLister(4, name='a-cache').units(source('Broken', how='hang', file=sys.argv[1])))\n"
    )
    daemon = subprocess.Popen(
        [sys.executable, "-c", code, str(pids)], cwd=Path(__file__).parents[2]
    )
    until(lambda: pids.exists() and pids.read_text())
    process, child = map(int, pids.read_text().split())
    daemon.kill()
    daemon.wait()
    until(lambda: not is_alive(process))
    assert is_alive(child), "it made a session of its own"
    ProcessLister(4, name="a-cache")
    until(lambda: not is_alive(child))
