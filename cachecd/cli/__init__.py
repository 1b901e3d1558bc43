"""The command line: data on stdout, logs and errors on stderr.

A command is one file in this folder with a function `command`, and one line in COMMANDS. The function's
parameters are typer's, and its docstring is its help. It returns its exit code (None for 0), or raises an
error. Only the module of the requested command is imported, so `cachecd --version` costs no more than
typer.

    0    done
    1    WorldError, OSError: a failure outside of the program
    2    CallerError, or arguments that typer refuses: the same call would fail again
    130  interrupted
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
import typer.core
import typer.main

COMMANDS = (
    "run",
    "init",
    "check",
    "fill",
    "schema",
    "status",
    "top",
    "doctor",
    "why",
    "trace",
    "sample",
    "where",
    "exclude",
    "erased",
    "verify",
    "demo",
)


class _Commands(Mapping[str, Any]):
    """The commands by name; each is imported when it is requested."""

    def __getitem__(self, name: str) -> Any:
        if name not in COMMANDS:
            raise KeyError(name)
        program = typer.Typer(add_completion=False, rich_markup_mode=None)
        program.command(name)(import_module(f"cachecd.cli.{name}").command)
        return typer.main.get_command(program)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class _Group(typer.core.TyperGroup):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: Any = _Commands()


# The error that typer raises for wrong arguments. typer exports no name for it.
_UsageError: Any = typer.BadParameter.__base__


def _exit(code: int | None, **_: Any) -> None:
    raise typer.Exit(code or 0)


# No markup: help and usage errors are plain text, the same in a terminal, a pipe and a log.
app = typer.Typer(
    cls=_Group,
    pretty_exceptions_enable=False,
    result_callback=_exit,
    rich_markup_mode=None,
)


def _print_version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        print(f"cachecd {version('cachecd')}")
        raise typer.Exit


@app.callback()
def _cachecd(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Keeps training data from object storage as TFRecord shards in a local, growing cache."""


def run_command(arguments: Sequence[str]) -> int:
    """Runs one command line and returns its exit code. Prints each error on a line of stderr."""
    code: Any = 0
    try:
        code = app(list(arguments), prog_name="cachecd", standalone_mode=False)
        sys.stdout.flush()
    except _UsageError as error:
        message = " ".join(error.format_message().split()).removesuffix(".")
        command = error.ctx.command_path if error.ctx else "cachecd"
        print(f"cachecd: {message} (see `{command} --help`)", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader of the pipe has ended. The interpreter flushes stdout at exit, so redirect stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except Exception as error:
        return _report(error)
    return code if isinstance(code, int) else 0


def _report(error: Exception) -> int:
    """Prints the error's message and returns the exit code. Raises unexpected errors again."""
    from cachecd_client.errors import CallerError, WorldError

    if not isinstance(error, (CallerError, WorldError, OSError)):
        raise error
    for line in str(error).splitlines():
        print(f"cachecd: {line}", file=sys.stderr)
    return 2 if isinstance(error, CallerError) else 1
