"""`cachecd status`: what the daemon holds, does, and is kept from doing."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer


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
    _say(f"cache {cache['dir']}  (pid {daemon['pid']}, up {daemon['uptime_s']:.0f} s)")
    _say(
        f"  {size(cache['used'])} used and {size(cache['reserved'])} reserved"
        f" of {size(cache['limit'])} ({share:.0%})"
    )
    if cache["stopped"]:
        _say(f"  ingest stopped by the disk: {cache['stopped']}")
    if cache["resting"]:
        _say(f"  nothing is fetched: {cache['resting']}")
    if cache["corrupt_shards"]:
        _say(f"  {cache['corrupt_shards']} corrupt shards found and fetched again")
    sampler = document["sampler"]
    if sampler["restarts"] or sampler["alive"] < sampler["workers"]:
        _say(
            f"  {sampler['alive']} of {sampler['workers']} sampler processes alive, "
            f"{sampler['restarts']} replaced; the last: {sampler['last_end']}"
        )
    for name, dataset in document["datasets"].items():
        _print_dataset(name, dataset, size)
    for lease in document["leases"]:
        _say(_lease(lease, size))


def _lease(lease: dict[str, Any], size: Any) -> str:
    """One line: what, whose, held by whom, since when, and what its end would free."""
    from cachecd.quantities import approximate_duration

    told = ", ".join(map(str, lease["held_by"]))
    ranks = f" ({len(lease['held_by'])} of {lease['ranks']} ranks: {told})" if told else ""
    kept = f", keeps {size(lease['retired_bytes'])} retired" if lease["retired_bytes"] else ""
    return (
        f"lease {lease['dataset']} epoch {lease['epoch']} of {lease['job']}: "
        f"{lease['records']} records, {'held' if lease['held'] else 'granted'}{ranks} "
        f"for {approximate_duration(lease['age_s'])}{kept}"
    )


def _listing(listing: dict[str, Any]) -> str:
    """One line: how far the listing is, or when the last one ended."""
    from cachecd.quantities import approximate_duration as age

    named = f"{listing['objects']} objects at {listing['objects_per_second']}/s"
    if listing["running"]:
        said = f"listing for {age(listing['for_s'])}: {named}"
    elif listing["ended_ago_s"] is None:
        return "not listed in this run"
    else:
        said = f"listed {age(listing['ended_ago_s'])} ago in {age(listing['took_s'])}: {named}"
    return f"{said}; {listing['failed']}" if listing["failed"] else said


def _print_dataset(name: str, dataset: dict[str, Any], size: Any) -> None:
    pinned = ", pinned" if dataset["pinned"] else ""
    whole = ", whole" if dataset["whole"] else ""
    _say(f"dataset {name}  (generation {dataset['generation']}{pinned}{whole})")
    _say(
        f"  cached: {dataset['shards']} shards, {dataset['records']} records, "
        f"{size(dataset['data_bytes'])}; {dataset['evicted_shards']} shards evicted, "
        f"{dataset['retired_shards']} retired and held"
    )
    if idle := dataset["idle_shards"]:
        _say(f"  idle: {idle} shards of other generations, which go when room is needed")
    listed = "complete" if dataset["listed"] else f"still listing: {dataset['units_listed']} so far"
    _say(f"  listing: {dataset['units']} units may be sampled ({listed})")
    going = f"{dataset['passes'] + 1}: {dataset['pass_done']:.1%} done"
    _say(
        f"  pass {'over: nothing is missing' if dataset['whole'] else going}; "
        f"{dataset['coverage']:.1%} of the units cached at least once"
    )
    _say(
        f"  making {dataset['making']} shards at {size(dataset['bytes_per_second'])}/s; waiting: "
        f"{dataset['waiting_units']} units, {dataset['waiting_shards']} shards that failed"
    )
    _say(f"  {_listing(dataset['listing'])}")
    if dataset["waits_for"]:
        _say(f"  waits: {dataset['waits_for']}")
    if dataset["held_back"]:
        _say(f"  held back: {dataset['held_back']}")
    if dataset["stopped"]:
        ago = "" if dataset["contradicted"] else f" {dataset['stopped_for_s']:.0f} s ago"
        _say(f"  ingest stopped{ago}: {dataset['stopped']}")
    aside = dataset["set_aside"]
    if aside["units"]:
        _say(f"  {aside['units']} units set aside:")
        for reason, count in sorted(aside["reasons"].items(), key=lambda item: -item[1])[:5]:
            _say(f"    {count} x {reason}")
