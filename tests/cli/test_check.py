"""`cachecd check`: what a configuration comes to, or one line for each thing wrong with it."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import tarfile

import numpy as np
import pytest
from PIL import Image

from cachecd import cli
from cachecd.disk.generation_file import GenerationFile, write_generation
from cachecd.disk.layout import Layout

MINIMAL = """\
version: 1
cache: {{dir: {cache}, limit: {limit}}}
datasets:
  train: {{source: {{url: 's3://bucket/train/', format: files}}}}
  eval: {{source: {{url: 's3://bucket/eval/', format: tfrecord}}, pin: true}}
"""


@pytest.fixture
def written(tmp_path):
    def write(limit="10GiB", more=""):
        path = tmp_path / "cachecd.yaml"
        path.write_text(MINIMAL.format(cache=tmp_path / "cache", limit=limit) + more)
        return path

    return write


def test_a_good_configuration_is_summed_up_on_stdout(cachecd, written, tmp_path):
    done = cachecd("check", written(more="sampler: {bandwidth: 600MB/s}\n"))
    assert (done.returncode, done.stderr) == (0, "")
    assert f"cache     {tmp_path}/cache\n          at most 10.0 GiB\n" in done.stdout
    assert "dataset   train\n          files from s3://bucket/train/\n" in done.stdout
    assert "begins with 1.0 GiB, then grows as fast as the link allows\n" in done.stdout
    assert "pinned: fetched first, leased when whole, never evicted\n" in done.stdout
    assert "sampler   2 processes, 32 connections, at most 600MB/s\n" in done.stdout
    assert "server    ipc:///run/cachecd/cachecd.sock\n" in done.stdout


def test_json_gives_the_configuration_and_its_sizes_in_bytes(cachecd, written, tmp_path):
    done = cachecd("check", written(limit="50%"), "--json")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    disk = os.statvfs(tmp_path)
    limit = disk.f_blocks * disk.f_frsize // 2
    assert document["resolved"]["limit_bytes"] == limit
    assert document["resolved"]["datasets"]["train"]["first_bytes"] == min(1 << 30, limit // 8)
    assert document["config"]["cache"]["limit"] == "50%"
    assert document["config"]["datasets"]["eval"]["pin"] is True


def test_values_that_count_from_the_next_generation_on_are_named(cachecd, written, tmp_path):
    path = written()
    done = cachecd("check", path, "--json")
    name = json.loads(done.stdout)["resolved"]["datasets"]["train"]["generation"]
    layout = Layout(tmp_path / "cache").generation("train", name)
    layout.root.mkdir(parents=True)
    write_generation(layout.identity, GenerationFile({}, 0.0, 7, 64 << 20))
    done = cachecd("check", path)
    assert "takes effect with the next generation: seed: 0 in the YAML, 7 in" in done.stdout
    stale = json.loads(cachecd("check", path, "--json").stdout)["resolved"]["datasets"]
    assert len(stale["train"]["from_next_generation"]) == 1
    assert stale["eval"]["from_next_generation"] == []


def test_every_mistake_is_one_line_on_stderr_and_the_exit_code_is_2(cachecd, written):
    path = written(limit="lots", more="sampler: {wokers: 3}\nserver: {port: 80}\n")
    done = cachecd("check", path, CACHECD_SAMPLER__CONNECTIONS="0")
    assert (done.returncode, done.stdout) == (2, "")
    where, what, port, variable = done.stderr.splitlines()
    assert where.startswith(f"cachecd: {path}:2:")
    assert "cache.limit: found 'lots', expected a size" in where
    assert what == f"cachecd: {path}:6:11: sampler.wokers: unknown key; did you mean 'workers'?"
    known = "endpoint, http, http_any, http_keys"
    assert port == f"cachecd: {path}:7:10: server.port: unknown key; known: {known}"
    assert variable.startswith(
        "cachecd: CACHECD_SAMPLER__CONNECTIONS: sampler.connections: found 0"
    )


def test_a_limit_that_is_too_small_says_which_would_do(cachecd, written):
    done = cachecd("check", written(limit="200MiB"))
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "cache.limit" in line
    assert "at least" in line


@pytest.fixture
def objects(tmp_path):
    def make(size, more=""):
        source = tmp_path / "src"
        source.mkdir()
        for number in range(5):
            (source / f"{number}.bin").write_bytes(bytes(size))
        path = tmp_path / "cachecd.yaml"
        path.write_text(
            f"version: 1\ncache: {{dir: {tmp_path}/cache, limit: 1GiB}}\ndatasets:\n"
            f"  train: {{source: {{url: 'file://{source}', format: files}}{more}}}\n"
        )
        return path

    return make


def test_with_sources_some_units_are_prepared_and_nothing_is_made(objects, capsys, tmp_path):
    path = objects(100_000)
    assert cli.run_command(["check", str(path), "--sources"]) == 0
    told = capsys.readouterr().out
    assert "read 5 of the first 5 units: 488.3 KiB fetched in " in told
    assert "record 0: key: bytes, 5 B: b'0.bin'\n" in told
    assert "and 4 more records\n" in told
    assert cli.run_command(["check", str(path), "--sources", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["resolved"]["datasets"]["train"]
    assert found["sample"]["num_records"] == 5
    assert not (tmp_path / "cache").exists()


def test_a_source_none_of_whose_objects_gives_a_record_fails_the_check(objects, capsys):
    path = objects(10, ", transform: decode_image")
    assert cli.run_command(["check", str(path), "--sources"]) == 1
    said = capsys.readouterr()
    assert "skipped: 0.bin: decode_image raised" in said.out
    line = said.err.splitlines()[-1]  # a slow machine shows progress before
    assert line.startswith(
        "cachecd: datasets.train: none of the first 5 units has a record; 5 x dec"
    )


@pytest.mark.parametrize(
    ("picks", "code", "reason"),
    [
        (
            'join: {a: "*.bin", b: "*.txt"}',
            1,
            "datasets.train: none of the first 5 units has a record",
        ),
        ('match: "*.jpg"', 2, "datasets.train.source.match: no object under"),
    ],
)
def test_patterns_that_give_no_record_fail_the_check(objects, capsys, picks, code, reason):
    path = objects(10)
    text = path.read_text().replace("format: files", f"format: files, {picks}")
    path.write_text(text)
    assert cli.run_command(["check", str(path), "--sources"]) == code
    (line,) = capsys.readouterr().err.splitlines()
    column = text.splitlines()[3].find('"*.jpg"') + 1
    place = f"{path}:4:{column}: " if code == 2 else ""
    assert line.startswith(f"cachecd: {place}{reason}")


@pytest.mark.parametrize("decoded", [False, True])
def test_check_says_how_many_images_the_limit_holds_either_way(tmp_path, capsys, decoded):
    bodies = []
    for number in range(12):
        pixels = np.random.default_rng(number).integers(0, 256, (96, 96, 3), np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG")
        bodies.append(file.getvalue())
    (tmp_path / "src").mkdir()
    with tarfile.open(tmp_path / "src" / "0.tar", "w") as archive:
        for number, body in enumerate(bodies):
            member = tarfile.TarInfo(f"{number:03}.jpg")
            member.size = len(body)
            archive.addfile(member, io.BytesIO(body))
    path, side = tmp_path / "images.yaml", 64 if decoded else 96
    path.write_text(
        f"version: 1\ncache: {{dir: {tmp_path}/cache, limit: 12MiB, shard_size: 256KiB}}\n"
        f"datasets:\n  train:\n    source: {{url: 'file://{tmp_path}/src', format: webdataset}}\n"
        "    grow: {first: 1MiB}\n"
        + "    transform: [{decode_image: jpg}, {resize: 64}]\n"
        * decoded
    )
    assert cli.run_command(["check", str(path), "--sources"]) == 0
    (found,) = re.findall(
        r"12\.0 MiB hold about ([0-9,]+) images as JPEG, or ([0-9,]+) as pixels \((.+)\)",
        capsys.readouterr().out,
    )
    assert found[2] == f"{side} x {side}"
    as_files, as_pixels = (int(number.replace(",", "")) for number in found[:2])
    size = sum(map(len, bodies)) / len(bodies)
    assert as_files == pytest.approx(10.5 * 2**20 / size, rel=0.07)
    assert as_pixels == pytest.approx(10.5 * 2**20 / (side**2 * 3), rel=0.07)


@pytest.mark.parametrize(("form", "code"), [("files", 0), ("tfrecord", 1), ("jsonl", 0)])
def test_json_lines_under_another_format_are_recognised(objects, capsys, tmp_path, form, code):
    path = objects(0)
    path.write_text(path.read_text().replace("format: files", f"format: {form}"))
    for file in (tmp_path / "src").iterdir():
        file.write_bytes(gzip.compress(b'{"text": "a"}\n{"text": "b"}\n'))
        file.rename(file.with_suffix(".bin.gz"))
    assert cli.run_command(["check", str(path), "--sources"]) == code
    hint = "0.bin.gz has JSON lines: with format jsonl, each line is a record\n"
    assert (hint in capsys.readouterr().out) == (form != "jsonl")


def test_parts_in_which_no_line_begins_fail_the_check(objects, capsys, tmp_path):
    path, table = objects(1000), tmp_path / "parts.csv"
    table.write_text("key,offset,length\n0.bin,10,20\n1.bin,500,20\n")
    manifest = f"format: jsonl, manifest: 'file://{table}'"
    path.write_text(path.read_text().replace("format: files", manifest))
    assert cli.run_command(["check", str(path), "--sources"]) == 1
    assert "none of the first 2 units has a record; 2 x no line begins in it" in (
        capsys.readouterr().err
    )


def split_of(tmp_path, split):
    """A configuration of one large array; its directory has no cache yet."""
    folder = tmp_path / "src"
    folder.mkdir(exist_ok=True)
    np.save(folder / "tokens.npy", np.arange(6 << 20, dtype=np.int32))  # 6 units
    path = tmp_path / "split.yaml"
    path.write_text(
        f"version: 1\ncache: {{dir: {tmp_path / 'cache'}, limit: 1GiB, shard_size: 1MiB}}\n"
        f"datasets:\n  train:\n    source: {{url: 'file://{folder}', format: npy, "
        f"array: {{window: 1024}}}}\n    split: {split}\n"
        f"server: {{endpoint: 'ipc://{tmp_path}/s/s.sock'}}\n"
    )
    return path


def test_with_sources_each_side_of_a_split_shows_a_record_of_its_own(cachecd, tmp_path):
    done = cachecd("check", split_of(tmp_path, "{eval: 0.4, by: unit}"), "--sources", "--json")
    assert done.returncode == 0, done.stderr
    datasets = json.loads(done.stdout)["resolved"]["datasets"]
    assert datasets.keys() == {"train", "train-eval"}
    units = [
        {(unit["key"], unit["begin"]) for unit in datasets[name]["sample"]["units"]}
        for name in datasets
    ]
    assert units[0]
    assert units[1]
    assert not units[0] & units[1]
    assert datasets["train"]["listed"] == ["eval holds out 2 of 6 units, 33 %"]


def test_with_sources_what_a_listing_leaves_out_is_named(cachecd, tmp_path):
    path = split_of(tmp_path, "{eval: 0.4, by: unit}")
    (tmp_path / "src" / "t" / "_delta_log").mkdir(parents=True)
    (tmp_path / "src" / "t" / "_delta_log" / "1.json").write_bytes(b"{}")
    (tmp_path / "src" / "none.npy").touch()
    done = cachecd("check", path, "--sources")
    assert "omitted: 1 hidden name (t/_delta_log/), 1 empty object (none.npy)\n" in done.stdout
    assert "the source has a table of Delta in t/: its objects still hold rows that" in done.stdout


@pytest.mark.parametrize("command", ["check", "run"])
def test_a_split_that_leaves_a_side_nothing_is_refused_at_once(cachecd, tmp_path, command):
    path = split_of(tmp_path, "{eval: 0.4}")
    done = cachecd(command, path, *(["--sources"] if command == "check" else []))
    assert done.returncode == 2, done.stderr
    assert "split.eval 0.4 by key holds out" in done.stderr
    assert "of the 1 units of the source" in done.stderr
    assert "split.by: unit" in done.stderr
    assert not (tmp_path / "cache").exists()


def test_limit_beyond_the_file_system_is_refused_with_its_size(cachecd, written, tmp_path):
    disk = os.statvfs(tmp_path)
    size = disk.f_blocks * disk.f_frsize
    done = cachecd("check", written(limit=size + 1))
    assert done.returncode == 2
    assert f"cache.limit: found {size + 1} bytes" in done.stderr
    assert f"expected at most {size} bytes" in done.stderr
    done = cachecd("check", written(limit="100%"), CACHECD_CACHE__RESERVE_FREE="1GiB")
    assert done.returncode == 2
    assert f"expected at most {size - (1 << 30)} bytes" in done.stderr
