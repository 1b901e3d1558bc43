"""The frame: what every command shares, and what starting one costs."""

from __future__ import annotations

import subprocess
import sys
import tomllib

import pytest

from cachecd import cli
from cachecd.errors import ConfigError, DiskError
from tests.cli.conftest import REPOSITORY

# What a start must not pay for unless a command needs it.
HEAVY = {"numpy", "pydantic", "zmq", "boto3", "obstore", "sklearn", "PIL", "structlog", "ruamel"}


def test_the_version_is_printed_and_is_that_of_both_distributions(cachecd):
    done = cachecd("--version")
    client = tomllib.loads((REPOSITORY / "client" / "pyproject.toml").read_text())["project"]
    assert (done.returncode, done.stdout, done.stderr) == (0, f"cachecd {client['version']}\n", "")
    daemon = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert f"cachecd-client=={client['version']}" in daemon["dependencies"]


def test_both_distributions_have_the_license():
    assert (REPOSITORY / "client/LICENSE").read_bytes() == (REPOSITORY / "LICENSE").read_bytes()


def test_help_names_every_command(cachecd):
    done = cachecd("--help")
    assert done.returncode == 0
    for name in cli.COMMANDS:
        assert f"\n  {name} " in done.stdout


def test_every_command_has_a_help_of_its_own(cachecd):
    for name in cli.COMMANDS:
        done = cachecd(name, "--help")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(f"Usage: cachecd {name} ")


def modules_after(*arguments):
    code = (
        "import sys; from cachecd.cli import run_command;"
        f"run_command({list(arguments)!r}); sys.stderr.write(' '.join(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    return {name.partition(".")[0] for name in done.stderr.split()}


def test_the_version_and_the_help_import_nothing_heavy():
    assert not HEAVY & modules_after("--help")


@pytest.mark.parametrize(
    ("arguments", "said", "command"),
    [
        ((), "Missing command", "cachecd"),
        (("chek",), "Did you mean 'check'", "cachecd"),
        (("check",), "Missing argument 'config'", "cachecd check"),
        (("schema", "--frob"), "No such option: --frob", "cachecd schema"),
    ],
)
def test_a_bad_call_is_refused_in_one_line_with_exit_2(cachecd, arguments, said, command):
    done = cachecd(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("cachecd: ")
    assert said in line
    assert line.endswith(f" (see `{command} --help`)")


TWO_LINES = "a.yaml:1:2: b: c\na.yaml:3:4: d: e"
DENIED = PermissionError(13, "Permission denied", "/x")


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (ConfigError(TWO_LINES), 2, "cachecd: a.yaml:1:2: b: c\ncachecd: a.yaml:3:4: d: e\n"),
        (DiskError("the disk is full"), 1, "cachecd: the disk is full\n"),
        (DENIED, 1, "cachecd: [Errno 13] Permission denied: '/x'\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_what_stops_a_command_is_one_line_a_thing_and_an_exit_code(
    monkeypatch, capsys, raised, code, said
):
    from cachecd.cli import schema

    def command():
        raise raised

    monkeypatch.setattr(schema, "command", command)
    assert cli.run_command(["schema"]) == code
    assert capsys.readouterr() == ("", said)


def test_a_defect_of_ours_keeps_its_traceback(monkeypatch):
    from cachecd.cli import schema

    def command():
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(schema, "command", command)
    with pytest.raises(ZeroDivisionError, match="a defect"):
        cli.run_command(["schema"])
