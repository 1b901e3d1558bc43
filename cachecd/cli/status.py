"""`cachecd status`: the daemon's datasets, leases, figures and faults."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

_LINES = {
    "epoch": "an epoch",
    "waits_for": "waits",
    "rotation_waits": "nothing rotates",
    "held_back": "held back",
    "quarantined_shards": "damaged shards to be made again",
}


def command(
    endpoint: Annotated[
        str | None,
        typer.Argument(
            help="The daemon's socket; else $CACHECD_ENDPOINT, else the default socket."
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


def _say(line: str) -> None:
    # Jobs, keys and reasons are the words of others.
    from cachecd.quantities import printable

    print(printable(line))


def _print(document: dict[str, Any]) -> None:
    from cachecd.quantities import approximate_size as size

    cache, daemon = document["cache"], document["daemon"]
    share = cache["used"] / cache["limit"]
    offline = ", offline" if daemon["offline"] else ""
    _say(f"cache {cache['dir']}  (pid {daemon['pid']}, up {daemon['uptime_s']:.0f} s{offline})")
    _say(
        f"  {size(cache['used'])} used and {size(cache['reserved'])} reserved"
        f" of {size(cache['limit'])} ({share:.0%})"
    )
    if cache["stopped"]:
        _say(f"  ingest stopped by the disk: {cache['stopped']}")
    if cache["resting"]:
        _say(f"  nothing is fetched: {cache['resting']}")
    if cache["corrupt_shards"]:
        _say(f"  {cache['corrupt_shards']} damaged shards found")
    sampler = document["sampler"]
    if sampler["restarts"] or sampler["alive"] < sampler["workers"]:
        _say(
            f"  {sampler['alive']} of {sampler['workers']} worker processes alive, "
            f"{sampler['restarts']} replaced; the last: {sampler['last_end']}"
        )
    for subject, reason in document["complaints"].items():
        _say(f"  {subject} fails: {reason}")
    for name, dataset in document["datasets"].items():
        _print_dataset(name, dataset, size)
    for other in document["unconfigured"]:
        _say(f"not configured: {other['dataset']}, {_older(other, size)}")
    for lease in document["leases"]:
        _say(_lease(lease, size))


def _lease(lease: dict[str, Any], size: Any) -> str:
    """One line for a lease: its dataset, job and holders, its age, and the bytes that its end would
    free."""
    from cachecd.quantities import approximate_duration

    ranks = ", ".join(map(str, lease["held_by"]))
    by = f" ({len(lease['held_by'])} of {lease['ranks']} ranks: {ranks})" if ranks else ""
    kept = f", keeps {size(lease['retired_bytes'])} retired" if lease["retired_bytes"] else ""
    return (
        f"lease {lease['dataset']} epoch {lease['epoch']} of {lease['job']}: "
        f"{lease['records']} records, {'held' if lease['held'] else 'granted'}{by} "
        f"for {approximate_duration(lease['age_s'])}{kept}"
    )


def _older(older: dict[str, Any], size: Any) -> str:
    damaged = f" ({older['damaged']})" if older["damaged"] else ""
    shards = f"{older['shards']} shards, {size(older['bytes'])}"
    return f"generation {older['generation']}: {shards}{damaged}"


def _listing(dataset: dict[str, Any]) -> str:
    """How far the first listing is, or when the last listing ended."""
    from cachecd.quantities import approximate_duration

    listing = dataset["listing"]
    if not dataset["listed"]:
        return f"still listing: {listing['objects']} objects"
    ago = listing["ended_ago_s"]
    return "complete" if ago is None else f"complete, {approximate_duration(ago)} ago"


def _print_dataset(name: str, dataset: dict[str, Any], size: Any) -> None:
    pinned = ", pinned" if dataset["pinned"] else ""
    whole = ", whole" if dataset["whole"] else ""
    records = f"{dataset['records']} records"
    if odd := dataset["skipped_records"]:
        records = f"{dataset['records']} of {dataset['records'] + odd} records, {odd} skipped"
    _say(f"dataset {name}  (generation {dataset['generation']}{pinned}{whole})")
    _say(
        f"  cached: {dataset['shards']} shards, {records}, "
        f"{size(dataset['data_bytes'])} of a share of {size(dataset['share'])}; "
        f"{dataset['evicted_shards']} shards retired, {dataset['retired_shards']} of them still held"
    )
    _say(f"  listing: {dataset['units']} units ({_listing(dataset)})")
    if dataset["listing"]["left_out"]:
        _say(f"  left out: {dataset['listing']['left_out']}")
    if dataset["listing"]["warning"]:
        _say(f"  {dataset['listing']['warning']}")
    pass_ = "whole: nothing is missing" if dataset["whole"] else f"pass {dataset['passes'] + 1}"
    _say(f"  {pass_}; {dataset['coverage']:.1%} of the units cached at least once")
    _say(
        f"  making {dataset['making']} shards at {size(dataset['bytes_per_second'])}/s, "
        f"{dataset['open_streams']} of {dataset['streams']} streams open"
    )
    for key, what in _LINES.items():
        if dataset[key]:
            _say(f"  {what}: {dataset[key]}")
    if dataset["stopped"]:
        _say(f"  ingest stopped {dataset['stopped_for_s']:.0f} s ago: {dataset['stopped']}")
    if dataset["rewritten_units"] and dataset["whole"]:
        _say(
            f"  {dataset['rewritten_units']} units were rewritten in the source; the cached versions stay "
            "until generation is raised"
        )
    for value in dataset["from_next_generation"]:
        _say(f"  counts from the next generation on: {value}")
    for older in dataset["older"]:
        _say(f"  older {_older(older, size)}")
    skipped = dataset["skipped"]
    if skipped["reasons"]:
        _say(f"  {skipped['units']} units and {skipped['records']} single records skipped:")
        for reason, about in list(skipped["reasons"].items())[:5]:
            count = about["units"] + about["records"]
            _say(f"    {count} x {reason} (for example {about['examples'][0]})")
