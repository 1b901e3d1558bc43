"""`cachecd status`: the daemon's datasets, leases and faults."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from cachecd.quantities import approximate_duration, printable
from cachecd.quantities import approximate_size as size

_TRAINERS = 5  # that are shown
#: A trainer that waited for more than this share of the last minute is shown as waiting.
MUCH = 0.1
_LINES = {
    "epoch": "per epoch",
    "waits_for": "waits",
    "rotation_waits": "nothing rotates",
    "held_back": "held back",
    "quarantined_shards": "quarantined shards",
}


def command(
    endpoint: Annotated[
        str | None,
        typer.Argument(
            help="The daemon's socket. Default: $CACHECD_ENDPOINT, or the default socket."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the whole status document as JSON.")
    ] = False,
) -> None:
    """Show a running daemon's datasets, leases and faults."""
    from cachecd_client import connect

    with connect(endpoint, timeout=5.0) as cache:
        document = cache.status()
    if as_json:
        print(json.dumps(document, indent=2))  # ASCII: keys need not be Unicode
    else:
        _print(document)


def _print_line(line: str) -> None:
    print(printable(line))  # users and stores choose the names of jobs and keys


def _print(document: dict[str, Any]) -> None:
    cache, daemon = document["cache"], document["daemon"]
    share = cache["used"] / cache["limit"]
    offline = ", offline" if daemon["offline"] else ""
    _print_line(
        f"cache {cache['dir']}  (pid {daemon['pid']}, up {daemon['uptime_s']:.0f} s{offline})"
    )
    _print_line(
        f"  {size(cache['used'])} used and {size(cache['reserved'])} reserved"
        f" of {size(cache['limit'])} ({share:.0%})"
    )
    if cache["stopped"]:
        _print_line(f"  the disk stops fetching: {cache['stopped']}")
    if cache["resting"]:
        _print_line(f"  fetching is paused: {cache['resting']}")
    if cache["corrupt_shards"]:
        _print_line(f"  {cache['corrupt_shards']} damaged shards found")
    sampler = document["sampler"]
    if sampler["restarts"] or sampler["alive"] < sampler["workers"]:
        _print_line(
            f"  {sampler['alive']} of {sampler['workers']} worker processes alive, "
            f"{sampler['restarts']} replaced; the last ended: {sampler['last_end']}"
        )
    for subject, reason in document["complaints"].items():
        _print_line(f"  {subject} fails: {reason}")
    for name, dataset in document["datasets"].items():
        _print_dataset(name, dataset)
    for other in document["unconfigured"]:
        _print_line(f"not configured: {other['dataset']}, {_generation(other)}")
    for lease in document["leases"]:
        _print_line(_lease(lease))
    for trainer in document["trainers"][:_TRAINERS]:
        _print_line(_trainer(trainer))
    if more := len(document["trainers"][_TRAINERS:]):
        _print_line(f"and {more} more trainer processes, which waited less (--json)")


def _lease(lease: dict[str, Any]) -> str:
    """Returns the line of a lease: dataset, job, holders, age, and the bytes that the lease keeps."""
    ranks = ", ".join(map(str, lease["held_by"]))
    by = f" ({len(lease['held_by'])} of {lease['ranks']} ranks: {ranks})" if ranks else ""
    kept = f", keeps {size(lease['retired_bytes'])} retired" if lease["retired_bytes"] else ""
    return (
        f"lease {lease['dataset']} epoch {lease['epoch']} of {lease['job']}: "
        f"{lease['records']} records, {'held' if lease['held'] else 'granted'}{by} "
        f"for {approximate_duration(lease['age_s'])}{kept}"
    )


def _trainer(trainer: dict[str, Any]) -> str:
    """Returns the line of a reading process: what it reads, and how much of the last minute it waited."""
    reader = f", {trainer['reader']}" if trainer["reader"] else ""
    line = (
        f"trainer {trainer['dataset']} epoch {trainer['epoch']} of {trainer['job']}: "
        f"rank {trainer['rank']} (pid {trainer['pid']}{reader}), {trainer['steps']} steps"
    )
    if not trainer["reader"]:
        return f"{line}, waits for its set for {approximate_duration(trainer['waited_s'])}"
    if trainer["blind"]:
        return f"{line}; {trainer['blind']}"
    line += f", waited {trainer['wait_share']:.0%} of the last minute"
    stages = trainer["stages_s"]
    if trainer["wait_share"] >= MUCH and stages:
        line += f", in this epoch mostly for {max(stages, key=lambda stage: float(stages[stage]))}"
    return line if trainer["queue"] is None else f"{line}; queue {trainer['queue']:.0%} full"


def _generation(values: dict[str, Any]) -> str:
    damaged = f" ({values['damaged']})" if values["damaged"] else ""
    shards = f"{values['shards']} shards, {size(values['bytes'])}"
    return f"generation {values['generation']}: {shards}{damaged}"


def _listing(dataset: dict[str, Any]) -> str:
    """Returns the progress of the first listing, or the age of the last listing."""
    listing = dataset["listing"]
    if not dataset["listed"]:
        return f"still listing: {listing['objects']} objects"
    ago = listing["ended_ago_s"]
    return "complete" if ago is None else f"complete, {approximate_duration(ago)} ago"


def _print_dataset(name: str, dataset: dict[str, Any]) -> None:
    pinned = ", pinned" if dataset["pinned"] else ""
    whole = ", whole" if dataset["whole"] else ""
    records = f"{dataset['records']} records"
    if count := dataset["skipped_records"]:
        records = f"{dataset['records']} of {dataset['records'] + count} records, {count} skipped"
    _print_line(f"dataset {name}  (generation {dataset['generation']}{pinned}{whole})")
    _print_line(
        f"  cached: {dataset['shards']} shards, {records}, "
        f"{size(dataset['data_bytes'])} of a share of {size(dataset['share'])}; "
        f"{dataset['evicted_shards']} shards retired, {dataset['retired_shards']} of them still held"
    )
    _print_line(f"  listing: {dataset['units']} units ({_listing(dataset)})")
    if dataset["listing"]["left_out"]:
        _print_line(f"  omitted: {dataset['listing']['left_out']}")
    if dataset["listing"]["warning"]:
        _print_line(f"  {dataset['listing']['warning']}")
    pass_ = "whole: nothing is missing" if dataset["whole"] else f"pass {dataset['passes'] + 1}"
    _print_line(f"  {pass_}; {dataset['coverage']:.1%} of the units cached at least once")
    _print_line(
        f"  making {dataset['making']} shards at {size(dataset['bytes_per_second'])}/s, "
        f"{dataset['open_streams']} of {dataset['streams']} streams open"
    )
    for key, what in _LINES.items():
        if dataset[key]:
            _print_line(f"  {what}: {dataset[key]}")
    if dataset["stopped"]:
        _print_line(
            f"  fetching stopped {dataset['stopped_for_s']:.0f} s ago: {dataset['stopped']}"
        )
    if dataset["rewritten_units"] and dataset["whole"]:
        _print_line(
            f"  {dataset['rewritten_units']} units were rewritten in the source. To fetch their new "
            "versions, raise `generation`"
        )
    for value in dataset["from_next_generation"]:
        _print_line(f"  takes effect with the next generation: {value}")
    for older in dataset["older"]:
        _print_line(f"  older {_generation(older)}")
    skipped = dataset["skipped"]
    if skipped["reasons"]:
        _print_line(f"  {skipped['units']} units and {skipped['records']} single records skipped:")
        for reason, values in list(skipped["reasons"].items())[:5]:
            count = values["units"] + values["records"]
            _print_line(f"    {count} x {reason} (for example {values['examples'][0]})")
