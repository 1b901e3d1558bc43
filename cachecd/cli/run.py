"""`cachecd run`: the daemon, and optionally one trainer."""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import Annotated, Any

import typer

from cachecd.quantities import printable


def command(
    config: Annotated[Path, typer.Argument(help="The YAML configuration.")],
    trainer: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- TRAINER ...]",
            help="A command to run while the daemon runs, with $CACHECD_ENDPOINT set. cachecd ends with "
            "the command's exit code.",
        ),
    ] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Serve the cached shards; use no network.")
    ] = False,
    lifeline: Annotated[
        int | None,
        typer.Option(
            hidden=True, help="A pipe's read end. The daemon ends when the pipe is closed."
        ),
    ] = None,
) -> int:
    """Serve the datasets of CONFIG until the process is stopped (SIGTERM drains, SIGHUP reloads).

    With a command after --, start the daemon, wait until it answers, run the command, and end when the
    command ends. After Ctrl-C the command has 10 s to end, then it gets SIGTERM. A second Ctrl-C ends it at
    once.
    """
    from cachecd.config import load, placed
    from cachecd.daemon.service import StartOptions, run

    loaded = load(config)
    log_to_stderr(loaded.log)
    with placed(config):
        return run(loaded, StartOptions(offline, lifeline, trainer or ()), lambda: load(config))


def _printable(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Escapes control characters: text of a client, a store or user code cannot act on the terminal or
    forge a log line."""
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = printable(value)
    return event


def log_to_stderr(form: str = "auto") -> None:
    """Logs one line for each event. `form`: the value of the key `log`."""
    import structlog

    is_terminal = sys.stderr.isatty()
    as_json = form == "json" or (form == "auto" and not is_terminal)
    render: Any = structlog.dev.ConsoleRenderer(colors=is_terminal)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=False),
            *([] if as_json else [_printable]),  # before the traceback, which has several lines
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(default=str) if as_json else render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
