"""`cachecd run`: the daemon, and optionally one trainer beside it."""

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
            help="A command to run beside the daemon, with $CACHECD_ENDPOINT set; its exit code is ours.",
        ),
    ] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Serve what is cached; touch no network.")
    ] = False,
    lifeline: Annotated[
        int | None,
        typer.Option(hidden=True, help="A pipe's read end: when it closes, the daemon ends."),
    ] = None,
) -> int:
    """Serve the datasets of CONFIG until stopped (SIGTERM drains, SIGHUP reloads).

    With a command after --, start the daemon, wait until it answers, run the command, and end with it.
    Ctrl-C leaves the command 10 s to end before SIGTERM follows; a second Ctrl-C ends it.
    """
    from cachecd.config import load, placed
    from cachecd.daemon.service import Options, run

    loaded = load(config)
    log_to_stderr()
    with placed(config):
        return run(loaded, Options(offline, lifeline, trainer or ()), lambda: load(config))


def _printable(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """What a client, a store or a user's code said reaches no terminal as it is, and forges no line."""
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = printable(value)
    return event


def log_to_stderr() -> None:
    """One line an event, for people at a terminal and for journald alike."""
    import structlog

    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=False),
            _printable,
            structlog.processors.format_exc_info,
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=28),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
