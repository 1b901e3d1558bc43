"""`cachecd sample`: one unit as a sampler would prepare it, shown; nothing of a cache is touched."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cachecd import cli
from cachecd.cli.sample_view import printable
from cachecd.cli.sampler import Sampler
from cachecd.config import load
from cachecd.errors import ConfigError, UnitError

PIXELS = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)
STEPS = """\
def fail(record):
    import json
    answer = 42
    json.loads("no")

def wrong_shape(record):
    print("said by the transform")
    import numpy as np
    yield {"x": np.zeros(3, np.float32)}
    yield {"x": np.zeros(4, np.float32)}

def odd(record):
    import numpy as np
    return {"nan": np.array([np.nan, 1], np.float32), "many": [1, 2, 3], "words": [b"a", b"b"],
            "half": np.ones(2, np.float16), "text": "x"}
"""


def png(pixels=PIXELS):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for key in ("cat/0.png", "cat/1.png", "dog/0.png", "dog/1.png"):
        path = tmp_path / "src" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png())
    (tmp_path / "src" / "README").write_text("no class")
    (tmp_path / "steps.py").write_text(STEPS)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("steps", None)


def config(folder, transform=("decode_image",), label=True, form="files", **more):
    source = {"url": f"file://{folder}/src", "format": form}
    if label:
        source["label"] = {"pattern": "^([^/]+)/"}
    path = folder / "c.yaml"
    path.write_text(
        json.dumps(
            {
                "version": 1,
                "cache": {"dir": str(folder / "cache"), "limit": "1GiB", "shard_size": "64KiB"},
                "datasets": {"train": {"source": source, "transform": list(transform)}},
                **more,
            }
        )
    )
    return path


def test_the_first_unit_that_is_not_refused_is_shown_and_no_cache_is_made(folder, capsys):
    path, out = config(folder), folder / "out"
    assert cli.run_command(["sample", str(path), "--out", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (record,) = found["records"]
    assert (record["key"], record["ordinal"], found["skipped"]) == ("cat/0.png", 0, [])
    image = record["features"]["image"]
    assert (image["dtype"], image["shape"], image["min"], image["max"]) == (
        "uint8",
        [4, 5, 3],
        0,
        59,
    )
    assert image["mean"] == pytest.approx(29.5)
    label = record["features"]["label"]
    assert (label["class"], label["numbered"]) == ("cat", False)
    assert np.array_equal(np.asarray(Image.open(image["file"])), PIXELS)
    assert [str(p) for p in out.iterdir()] == [image["file"]]
    assert not (folder / "cache").exists()


def test_a_unit_is_found_by_its_key_and_its_records_are_told(folder, capsys):
    path = config(folder, transform=())
    assert cli.run_command(["sample", str(path), "--key", "dog/1.png"]) == 0
    told = capsys.readouterr().out
    assert f"unit       dog/1.png of file://{folder}/src\n" in told
    assert "record 0   key: bytes, 9 B: b'dog/1.png'\n" in told
    assert "label: int64: class 'dog' (numbered when the listing ends)" in told
    assert f"payload: bytes, {len(png())} B: a png file of 4 x 5 pixels\n" in told
    assert "to write the images to files, use --out DIR\n" in told
    assert list((folder / "temporary").iterdir()) == []
    assert cli.run_command(["sample", str(path), "--key", "dog/1.png", "--out", str(folder)]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "payload:" in line]
    assert Path(line.partition("  -> ")[2]).read_bytes() == png()


def test_an_image_is_never_written_over_a_file(folder, capsys):
    path, out = config(folder), folder / "out"
    assert cli.run_command(["sample", str(path), "--out", str(out)]) == 0
    assert cli.run_command(["sample", str(path), "--out", str(out)]) == 1
    assert "File exists" in capsys.readouterr().err


def test_files_are_named_by_numbers_and_what_is_shown_is_printable(folder, capsys):
    hostile = "cat/\u202e..\x1b[31m.png"
    (folder / "src" / hostile).write_bytes(png())
    path, out = config(folder), folder / "out"
    assert cli.run_command(["sample", str(path), "--key", hostile, "--out", str(out)]) == 0
    told = capsys.readouterr().out
    assert "\x1b" not in told
    assert "\u202e" not in told
    assert r"cat/\u202e..\x1b[31m.png" in told
    assert [p.name for p in out.iterdir()] == ["record-0-feature-0.png"]
    assert printable("a\nb\udcff") == r"a\nb\udcff"


def test_key_in_another_normalization_is_told_so(folder):
    (folder / "src" / "cat" / "e\u0301.png").write_bytes(b"x")
    with pytest.raises(UnitError, match=r"there is no 'cat/\\xe9.png', but 'cat/e\\u0301.png'"):
        Sampler(load(config(folder)), "train").named("cat/\u00e9.png")


def test_a_key_that_is_not_listed_is_said_so(folder):
    sampler = Sampler(load(config(folder)), "train")
    for key in ("cat/2.png", "a", "zebra", "dog"):
        with pytest.raises(UnitError, match="the source lists no object"):
            sampler.named(key)
    with pytest.raises(
        UnitError, match=r"no unit of 'cat/0.png' begins at byte 7; its units begin at 0"
    ):
        sampler.named("cat/0.png", 7)
    with pytest.raises(ConfigError, match="there is no dataset 'eval': choose one of train"):
        Sampler(load(config(folder)), "eval")


def test_a_source_of_refused_objects_alone_says_why(folder, capsys):
    path = config(folder)
    path.write_text(path.read_text().replace("^([^/]+)/", "^(bird)/"))
    assert cli.run_command(["sample", str(path)]) == 1
    assert "skipped    README: label pattern '^(bird)/' finds no class" in capsys.readouterr().out


def test_with_pdb_the_debugger_stands_at_the_users_line_that_raised(folder, capsys, monkeypatch):
    path = config(folder, transform=["decode_image", "steps:fail"])
    monkeypatch.setattr(sys, "stdin", io.StringIO("p answer * 2\nq\n"))
    assert cli.run_command(["sample", str(path), "--pdb"]) == 1
    told = capsys.readouterr().out
    assert "skipped    cat/0.png: steps:fail raised json.decoder.JSONDecodeError: Expecting" in told
    assert f"> {folder}/steps.py(4)fail()" in told
    assert "(Pdb) 84\n" in told


def test_a_transform_that_cannot_be_imported_is_an_error_with_exit_2(folder, capsys):
    assert cli.run_command(["sample", str(config(folder, transform=["steps:gone"]))]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "transform steps:gone: cannot be imported" in said.err


def test_a_module_of_the_configured_path_comes_first_and_one_without_the_function_is_named(
    folder, capsys
):
    (folder / "project").mkdir()
    (folder / "project" / "steps.py").write_text("def one(record):\n    return {'n': 1}\n")
    sampler = {"path": ["project"]}
    for transform, code in (["steps:one"], 0), (["steps:fail"], 2):
        path = config(folder, transform=transform, sampler=sampler)
        assert cli.run_command(["sample", str(path)]) == code
    said = capsys.readouterr()
    assert "n: int64: 1" in said.out
    assert f"has no attribute 'fail' ({folder}/project/steps.py)" in said.err
    assert cli.run_command(["check", str(config(folder, sampler=sampler))]) == 0
    assert f"imports from {folder}/project first" in capsys.readouterr().out


def test_the_time_of_each_stage_and_of_decode_is_told(folder, capsys):
    path = config(folder, transform=())
    assert cli.run_command(["sample", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["stages"].keys() == {"fetch", "decode", "encode", "write", "sync"}
    assert {each["records"] for each in found["stages"].values()} == {1}, "each record is timed"
    assert found["decode_ms"].keys() == {"payload"}
    assert cli.run_command(["sample", str(path)]) == 0
    told = capsys.readouterr().out
    assert "time       fetch: " in told
    assert "decode={'payload': Image(224)} in the trainer: " in told
    assert "(1 picture; not measured: other sizes and crops, assembling batches)" in told

    assert cli.run_command(["sample", str(config(folder))]) == 0
    told = capsys.readouterr().out
    assert "decode_image: " in told
    assert "Image(224)" not in told, "the trainer gets pixels"
