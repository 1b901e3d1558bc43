"""The form of the daemon's log: text for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import structlog

from cachecd.cli.run import log_to_stderr


@pytest.fixture(autouse=True)
def reset() -> Iterator[None]:
    yield
    structlog.reset_defaults()  # the log goes to a stream that ends with the test


def logged(form: str, capsys: pytest.CaptureFixture[str]) -> str:
    log_to_stderr(form)
    structlog.get_logger("test").warning("it fails", why="\x1b[2J\nforged", keys=("a", "\udcff"))
    return capsys.readouterr().err


def test_text_escapes_control_characters_and_is_one_line(capsys):
    said = logged("text", capsys)
    assert said.count("\n") == 1
    assert "it fails" in said
    assert "\\x1b[2J\\nforged" in said
    assert "\x1b" not in said


@pytest.mark.parametrize("form", ["auto", "json"])
def test_json_is_one_object_a_line(capsys, form: str):
    said = logged(form, capsys)
    assert said.count("\n") == 1
    assert said.isascii()
    line = json.loads(said)
    assert (line["event"], line["level"]) == ("it fails", "warning")
    assert line["why"] == "\x1b[2J\nforged"


@pytest.mark.parametrize(("form", "lines"), [("json", 1), ("text", 4)])
def test_traceback_of_an_error_is_a_value_or_lines(capsys, form: str, lines: int):
    log_to_stderr(form)
    try:
        raise ValueError("odd")
    except ValueError as error:
        structlog.get_logger("test").error("failed", exc_info=error)
    said = capsys.readouterr().err
    assert "ValueError: odd" in said
    assert said.count("\n") >= lines
    if form == "json":
        assert "ValueError: odd" in json.loads(said)["exception"]
