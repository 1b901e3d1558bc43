"""What is wrong is said in one line, with the right exit code, and leaves nothing half-made on disk."""

from __future__ import annotations

import ctypes
import io
import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from cachecd.disk.filesystem import refuse_network_filesystem
from cachecd.errors import DiskError
from cachecd_client.errors import RequestError, SchemaError
from tests.e2e.conftest import upload
from tests.e2e.daemons import Daemon, run, wait_until
from tests.e2e.inventory import inventory
from tests.e2e.reading import by_numpy, expected

CALLER, WORLD = 2, 1  # exit codes: the call or the configuration is wrong; the world is


def tree(folder: Path) -> dict[str, Any]:
    """Everything below a folder: its kind, mode and size."""
    found = {}
    for path in sorted(folder.rglob("*")):
        stat = path.lstat()
        size = 0 if path.is_dir() else stat.st_size
        found[str(path.relative_to(folder))] = oct(stat.st_mode), size
    return found


def refused(daemon: Daemon, code: int, *options: str, **how: Any) -> str:
    """Runs it, which must fail at once; the one line that it said, without its "cachecd: "."""
    daemon.write_config()
    before = tree(daemon.folder)
    done = run(daemon.command(*options), daemon, **how) if how else daemon.run(*options)
    assert tree(daemon.folder) == before, "something is left on disk"
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert done.returncode == code, line
    assert line.startswith("cachecd: ")
    return line.removeprefix("cachecd: ")


def without_privileges() -> None:
    """For a child process: permissions hold for it even if it is root's."""
    for capability in (1, 2):  # DAC_OVERRIDE, DAC_READ_SEARCH; not ours to drop unless we are root
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP


# --- the configuration


def test_an_unknown_key_is_named_with_its_line_and_column(daemon, train):
    served: Daemon = daemon({"train": train()})
    served.document["cache"]["shard_sise"] = "64MiB"
    served.write_config()
    lines = served.config.read_text().splitlines()
    number = next(n for n, line in enumerate(lines, 1) if "shard_sise" in line)
    column = lines[number - 1].index('"shard_sise"') + 1
    said = refused(served, CALLER)
    assert said.startswith(f"{served.config}:{number}:{column}: cache.shard_sise: ")
    assert "shard_size" in said, "it guesses what was meant"


def test_a_limit_below_the_minimum_is_refused_with_a_figure_that_would_do(daemon, train, objects):
    served: Daemon = daemon({"train": train()}, limit="1MiB")
    said = refused(served, CALLER)
    found = re.search(r"^\S+:\d+:\d+: cache\.limit: .* expected at least (\d+)MiB", said)
    assert found, said

    # One MiB less will not do, and that figure will: it reaches `first`, and rotates.
    served.document["cache"]["limit"] = f"{int(found[1]) - 1}MiB"
    assert f"at least {found[1]}MiB" in refused(served, CALLER)
    served.document["cache"]["limit"] = f"{found[1]}MiB"
    served.start()
    sets = []
    with served.connect() as cache:
        for epoch in cache.epochs("train", 5, timeout=30):
            sets.append(set(epoch.files))
            records = by_numpy(epoch)
            assert records == expected(objects, records)
            epoch.release()
            served.settle()
    assert sets[-1] - sets[0], "it rotates"
    assert sets[0] - sets[-1]


def test_a_label_pattern_that_matches_nothing_is_refused_with_an_example(daemon, train, objects):
    dataset = train()
    dataset["source"]["label"] = {"pattern": r"^kind-(\d+)/"}
    served = daemon({"train": dataset})
    place, _, said = refused(served, CALLER).partition(": ")
    assert re.fullmatch(re.escape(str(served.config)) + r":\d+:\d+", place)
    assert said.startswith(f"datasets.train.source: none of the {len(objects)} objects can be used")
    assert ": label pattern '^kind-(\\\\d+)/' finds no class in the key" in said
    assert "the first, 'class-" in said


# --- the source, with nothing cached yet


# The source's URL, changes of the environment ("": unset), and words of what is said.
UNUSABLE: dict[str, tuple[str, dict[str, str], list[str]]] = {
    "empty prefix": ("s3://spine/trian/", {}, ["train.source.url", "no objects under {url}"]),
    "unreachable": (
        "s3://spine/train/",
        {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"},
        ["datasets.train.source", "http://127.0.0.1:9", "cannot connect to the store"],
    ),
    "no bucket": ("s3://no-such-bucket/train/", {}, ["{url}", "no such bucket"]),
    "no credentials": (
        "s3://spine/train/",
        {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""},
        ["no credentials found", "AWS_ACCESS_KEY_ID"],
    ),
    "wrong credentials": (
        "s3://spine/train/",
        {"AWS_SECRET_ACCESS_KEY": "a-secret-that-is-wrong"},
        ["the secret key does not belong to the access key"],
    ),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_a_source_that_cannot_be_used_is_refused_with_the_reason(daemon, train, s3, name):
    url, changes, words = UNUSABLE[name]
    dataset = train()
    dataset["source"]["url"] = url
    environ = {k: v for k, v in (s3.environ | changes).items() if v}
    code = CALLER if name == "empty prefix" else WORLD
    said = refused(daemon({"train": dataset}, environ=environ), code)
    assert all(word.format(url=url) in said for word in words), said
    assert "a-secret-that-is-wrong" not in said


# --- the disk


MOUNTED = """
import sys
from pathlib import Path
from cachecd.disk import filesystem as disk
from cachecd.cli import run_command
disk.MOUNT_TABLE = Path(sys.argv[1])
sys.exit(run_command(sys.argv[2:]))
"""


def test_a_network_file_system_is_refused_for_the_cache(daemon, train):
    """No test can count on being allowed to mount one, so the kernel's table of mounts is ours here;
    all else is the real command. tests/disk/test_filesystem.py has the table's parsing, type by type."""
    kind = "nfs4"
    served: Daemon = daemon({"train": train()})
    table = served.folder / "mountinfo"
    table.write_text(
        "22 1 254:1 / / rw,relatime - ext4 /dev/root rw\n"
        f"36 22 0:32 / {served.folder} rw,relatime shared:2 - {kind} server:/export rw\n"
    )
    with pytest.raises(DiskError, match=kind):
        refuse_network_filesystem(served.cache, table.read_text())
    served.write_config()
    before = tree(served.folder)
    done = run([sys.executable, "-c", MOUNTED, str(table), "run", str(served.config)], served)
    assert (done.returncode, done.stdout) == (WORLD, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"cachecd: {served.cache} is on the network file system {kind}")
    assert tree(served.folder) == before


def test_a_cache_directory_that_may_not_be_written_is_refused(daemon, train):
    served: Daemon = daemon({"train": train()})
    served.cache.mkdir(0o500)
    said = refused(served, WORLD, preexec_fn=without_privileges)
    assert said == f"cache.dir {served.cache} cannot be written by uid {os.geteuid()}"


def test_a_cache_directory_that_cannot_be_made_is_refused(daemon, train):
    served: Daemon = daemon({"train": train()})
    served.cache = served.folder / "closed" / "cache"
    served.document["cache"]["dir"] = str(served.cache)
    served.cache.parent.mkdir(0o500)
    said = refused(served, WORLD, preexec_fn=without_privileges)
    assert said == f"cannot create cache.dir {served.cache}: Permission denied"


def test_a_file_in_the_place_of_the_cache_directory_is_refused(daemon, train):
    served: Daemon = daemon({"train": train()})
    served.cache.write_text("precious")
    said = refused(served, WORLD)
    assert str(served.cache) in said
    assert served.cache.read_text() == "precious"


# --- the socket, and other daemons


def test_a_socket_path_that_is_too_long_is_refused(daemon, train):
    served: Daemon = daemon({"train": train()})
    folder = served.folder / ("s" * 60) / ("t" * 60)
    served.document["server"]["endpoint"] = f"ipc://{folder}/cachecd.sock"
    said = refused(served, CALLER)
    assert f"{folder}/cachecd.sock" in said
    assert "107" in said


def test_a_socket_whose_directory_cannot_be_made_is_refused(daemon, train):
    served: Daemon = daemon({"train": train()})
    served.socket.parent.write_text("a file in its place")
    said = refused(served, WORLD)
    assert str(served.socket.parent) in said


def test_a_socket_whose_directory_may_not_be_made_is_refused(daemon, train):
    served: Daemon = daemon({"train": train()})
    closed = served.folder / "closed"
    closed.mkdir(0o500)
    served.document["server"]["endpoint"] = f"ipc://{closed}/run/cachecd.sock"
    said = refused(served, WORLD, preexec_fn=without_privileges)
    assert said == (
        f"cannot create the directory {closed}/run for the socket (set server.endpoint, or "
        "XDG_RUNTIME_DIR, to a directory that you can write): Permission denied"
    )


def test_a_second_daemon_on_a_cache_directory_is_refused_and_hears_who_has_it(daemon, train):
    first: Daemon = daemon({"train": train()}, limit="6MiB").start()
    second: Daemon = daemon({"train": train()}, name="second", limit="6MiB")
    second.document["cache"]["dir"] = str(first.cache)
    said = refused(second, WORLD)
    assert f"cache directory {first.cache} is in use by cachecd pid {first.pid} " in said
    assert first.endpoint in said
    assert first.status()["daemon"]["pid"] == first.pid


def test_a_second_daemon_on_a_socket_is_refused_and_hears_who_has_it(daemon, train):
    first: Daemon = daemon({"train": train()}, limit="6MiB").start()
    second: Daemon = daemon({"train": train()}, name="second", limit="6MiB")
    second.document["server"]["endpoint"] = first.endpoint
    said = refused(second, WORLD)
    assert f"socket {first.socket} is in use by cachecd pid {first.pid} " in said
    assert first.status()["daemon"]["pid"] == first.pid


# --- single objects


def status_of(daemon: Daemon) -> dict[str, Any]:
    command = [sys.executable, "-m", "cachecd", "status", daemon.endpoint, "--json"]
    done = run(command, daemon)
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.long
def test_objects_that_went_or_changed_since_the_listing_are_skipped_and_the_rest_goes_on(
    daemon, s3
):
    bodies = {f"{number:03d}": bytes([number]) * 10_000 for number in range(250)}
    bucket = s3.bucket("moving")
    upload(s3, bucket, bodies)
    source = {"url": f"s3://{bucket}/", "format": "files"}
    grow = {"first": "256KiB", "per_epoch": 0}
    served = daemon({"train": {"source": source, "grow": grow}}, shard_size="64KiB").start()
    # All is listed and little fetched, until the configuration lets it grow: the rest changes meanwhile.
    wait_until(lambda: served.train["shards"] >= 4)
    served.settle()
    keys = sorted(bodies)
    fetched = {keys[unit] for shard in inventory(served.cache).values() for unit in shard.units}
    untouched = sorted(bodies.keys() - fetched)
    gone, longer, other = untouched[20:40:5], untouched[40:60:5], untouched[60:80:5]
    for key in gone:
        s3.client.delete_object(Bucket=bucket, Key=key)
    upload(s3, bucket, {key: bodies[key] + b"more" for key in longer})
    upload(s3, bucket, {key: bytes(10_000) for key in other})

    served.document["datasets"]["train"]["grow"] = {"first": "256KiB"}
    served.write_config()
    os.kill(served.pid, signal.SIGHUP)
    served.until_whole()
    with served.connect() as cache, cache.acquire("train", 1, timeout=30) as epoch:
        batches = list(epoch.numpy(1))
    records = {bytes(b["key"][0]).decode(): bytes(b["payload"][0]) for b in batches}
    touched = {*gone, *longer, *other}
    assert records.items() <= bodies.items()
    lacking = bodies.keys() - records.keys()
    assert lacking <= touched, "a unit may have been fetched ahead"
    reasons = served.skipped()
    assert reasons.keys() == lacking
    for key, reason in reasons.items():
        expected = "is gone since it was listed" if key in gone else "changed since it was listed"
        assert expected in reason, key
    assert any("gone" in reason for reason in reasons.values())
    assert any("changed" in reason for reason in reasons.values())


def test_an_object_that_cannot_be_decoded_is_set_aside_with_its_reason_also_after_a_restart(
    daemon, s3
):
    bodies = {}
    for number in range(20):
        png = io.BytesIO()
        Image.new("RGB", (8, 8), (number, 0, 0)).save(png, "PNG")
        bodies[f"{number:02d}.png"] = png.getvalue()
    bodies["03.png"] = bodies["03.png"][:40]
    bodies["11.png"] = b"<html>not found</html>"
    bucket = s3.bucket("pictures")
    upload(s3, bucket, bodies)
    source = {"url": f"s3://{bucket}/", "format": "files"}
    dataset = {"source": source, "transform": [{"decode_image": "payload"}]}
    served = daemon({"train": dataset}).start()
    served.until_whole()
    first = status_of(served)["datasets"]["train"]
    assert first["records"] == 18
    reasons = served.skipped()
    assert reasons.keys() == {"03.png", "11.png"}
    assert all("decode_image raised" in reason for reason in reasons.values())
    assert "UnidentifiedImageError" in reasons["11.png"]

    assert served.terminate() == 0
    served.start()
    assert status_of(served)["datasets"]["train"]["skipped"] == first["skipped"]
    with served.connect() as cache, cache.acquire("train", timeout=30) as epoch:
        (batch,) = epoch.numpy(18)
        assert batch["image"].shape == (18, 8, 8, 3)
        assert {int(image[0, 0, 0]) for image in batch["image"]} == set(range(20)) - {3, 11}


@pytest.mark.long
def test_a_prefix_of_grey_and_coloured_images_is_cached_whole_whichever_comes_first(daemon, s3):
    bodies = {}
    for number in range(40):
        mode = ("L", "RGB", "P", "CMYK", "I;16")[number % 5]
        image = io.BytesIO()
        Image.new(mode, (8, 8), number).save(image, "TIFF" if mode in ("CMYK", "I;16") else "PNG")
        bodies[f"{number:02d}.img"] = image.getvalue()
    bucket = s3.bucket("grey-and-coloured")
    upload(s3, bucket, bodies)
    source = {"url": f"s3://{bucket}/", "format": "files"}
    served = daemon({"train": {"source": source, "transform": ["decode_image"]}}).start()
    with served.connect() as cache, cache.acquire("train", timeout=30) as epoch:
        assert epoch.schema["image"].shape == (8, 8, 3)
    served.until_whole()
    assert (served.train["records"], served.train["skipped"]["units"]) == (40, 0)


def test_where_most_images_have_another_shape_than_the_first_the_trainer_gets_an_error(daemon, s3):
    bodies = {}
    for number in range(90):
        image = io.BytesIO()
        side = 8 + number % 3  # whichever is first, two thirds differ from it
        Image.new("RGB", (side, side)).save(image, "PNG")
        bodies[f"{number:02d}.png"] = image.getvalue()
    bucket = s3.bucket("shapes")
    upload(s3, bucket, bodies)
    source = {"url": f"s3://{bucket}/", "format": "files"}
    served = daemon({"train": {"source": source, "transform": ["decode_image"]}}).start()
    said = r"\d+ of the \d+ units .*contradict the schema of the first"
    wait_until(lambda: re.search(said, served.train["stopped"]), what="it is stopped")
    for _ in range(2):
        with served.connect() as cache, pytest.raises(SchemaError, match=said):
            cache.acquire("train", timeout=30)
        assert served.terminate() == 0
        served.start()


def test_a_dataset_of_which_nothing_can_be_made_is_refused_to_the_trainer(daemon, s3):
    bucket = s3.bucket("hopeless")
    upload(s3, bucket, {f"{number}.png": b"no picture" for number in range(5)})
    source = {"url": f"s3://{bucket}/", "format": "files"}
    dataset = {"source": source, "transform": [{"decode_image": "payload"}]}
    served = daemon({"train": dataset}).start()
    with (
        served.connect() as cache,
        pytest.raises(
            RequestError, match="no record of train could be made: all units are skipped"
        ),
    ):
        cache.acquire("train", timeout=30)
