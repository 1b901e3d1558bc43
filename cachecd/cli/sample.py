"""`cachecd sample CONFIG`: fetches one unit, transforms it, and shows its records, in this process."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cachecd.quantities import approximate_size, printable

if TYPE_CHECKING:
    from cachecd.cli.sampler import Sample

_MOST_TRIED = 100  # units, until the name and the size of one are acceptable


def command(
    config: Annotated[Path, typer.Argument(help="The YAML file.")],
    dataset: Annotated[
        str | None, typer.Argument(help="The dataset. Default: the configuration's first dataset.")
    ] = None,
    key: Annotated[
        str | None, typer.Option(help="The object, by its key under the source's URL.")
    ] = None,
    begin: Annotated[
        int,
        typer.Option(
            min=0, metavar="BYTE", help="The byte of the object at which the unit begins."
        ),
    ] = 0,
    records: Annotated[
        int, typer.Option(min=1, metavar="N", help="The maximum number of records to show.")
    ] = 10,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write images to files in this directory."),
    ] = None,
    debug: Annotated[
        bool,
        typer.Option("--pdb", help="Open the debugger where the transform raises."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Fetch one unit, run the transform on it, and show its records.

    All work is done in this process, without a daemon and without a cache. Without --key, the command takes
    the first listed unit whose name and size are acceptable. If a daemon would skip the unit, the command
    shows the reason. With --out, images (uint8 [height, width, 1 or 3], and the bytes of image files) are
    written as files. The exit code is 1 if there is no record.
    """
    from cachecd.config import load

    loaded = load(config)
    from cachecd.cli import sample_view
    from cachecd.cli.sampler import Sampler

    name = dataset or next(iter(loaded.datasets))
    if loaded.sampler.python:
        print(
            f"cachecd: uses the interpreter {sys.executable}, not sampler.python ({loaded.sampler.python})",
            file=sys.stderr,
        )
    sampler = Sampler(loaded, name)
    unit = sampler.usable(_MOST_TRIED) if key is None else sampler.named(key, begin)
    sample = sampler.take((unit,), records)
    sample_view.measure_decoding(sample)
    images = {}
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        images = sample_view.write_images(sample, out)
    if as_json:
        print(json.dumps({"dataset": name, **sample_view.document(sample, images)}, indent=2))
    else:
        _print(sampler.url, name, sample, images)
        if out is None and sample_view.has_images(sample):
            print(f"{'':<11}to write the images to files, use --out DIR")
    if debug and sample.errors:
        from cachecd.cli.postmortem import debug_error

        debug_error(sample.errors[0])
    return 0 if sample.records else 1


def _print(url: str, name: str, sample: Sample, images: dict[tuple[int, str], Path]) -> None:
    from cachecd.cli.sample_view import costs, lines

    (unit,) = sample.units
    part = f" from byte {unit.begin}" if unit.begin else ""
    outcome = sample.outcome
    print(f"{'dataset':<11}{name}")
    print(f"{'unit':<11}{printable(unit.key)} of {url}")
    print(
        f"{'':<11}{approximate_size(unit.size)}{part}; {approximate_size(outcome.fetched_bytes)} "
        f"fetched, {outcome.records} {'record' if outcome.records == 1 else 'records'} prepared in "
        f"{outcome.seconds:.2f} s"
    )
    for left, right in (*lines(sample, images), *costs(sample)):
        print(f"{left:<11}{right}")
