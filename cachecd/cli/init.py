"""`cachecd init URL`: inspects a few objects and proposes a first configuration."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from cachecd.errors import ConfigError


def command(
    url: Annotated[str, typer.Argument(help="The URL prefix of the objects, or a local folder.")],
    form: Annotated[
        str | None, typer.Option("--format", help="The format of the objects. Default: detect it.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The file to write, which must not exist.")
    ] = None,
    cache: Annotated[
        Path | None, typer.Option(help="The cache's directory, on a local disk.")
    ] = None,
    endpoint: Annotated[
        str | None, typer.Option(help="Address of an S3 service other than Amazon's.")
    ] = None,
    region: Annotated[str | None, typer.Option(help="The bucket's region.")] = None,
    anonymous: Annotated[bool, typer.Option("--anonymous", help="Use no credentials.")] = False,
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="A tokenizer.json: add steps that make windows of tokens of the text."),
    ] = None,
) -> None:
    """Inspect a few objects under URL and print a YAML configuration for them.

    The names, sizes and first bytes of the objects determine the format. Folders that look like classes
    determine the label, and the free disk space determines the limit. Comments give the reasons. Try the
    configuration with `cachecd sample FILE`.
    """
    from pydantic import ValidationError

    from cachecd.cli.proposal import propose, unknown
    from cachecd.cli.survey import survey
    from cachecd.config import AVAILABLE_FORMATS, SourceConfig
    from cachecd.stores.fetch import open_store

    if "://" not in url and (path := Path(url)).is_absolute() | path.exists():
        if not path.is_dir():
            why = "is a file" if path.exists() else "does not exist"
            raise ConfigError(f"{url} {why}: name a folder, or a URL such as s3://bucket/train/")
        url = f"file://{path.resolve()}"
    if out is not None and out.exists():
        raise ConfigError(f"{out} exists already: choose another file with --out")
    if form not in (None, *AVAILABLE_FORMATS):
        raise ConfigError(
            f"--format: found {form!r}, expected one of {', '.join(AVAILABLE_FORMATS)}"
        )
    try:
        source = SourceConfig(
            url=url, format="files", endpoint=endpoint, region=region, anonymous=anonymous
        )
    except ValidationError as error:
        lines = [f"{e['loc'][0]}: {e['msg'].removeprefix('Value error, ')}" for e in error.errors()]
        raise ConfigError("\n".join(lines)) from None
    seen = survey(open_store(source, 4), url)
    text = propose(source, seen, form, cache and cache.absolute(), tokenizer)
    if form is None and (doubt := unknown(seen)):
        sys.stderr.write(f"{doubt}. The comments describe other formats\n")
    if out is None:
        sys.stdout.write(text)
    else:
        with out.open("x") as file:
            file.write(text)
        sys.stderr.write(f"wrote {out}; next: cachecd check {out}, cachecd sample {out}\n")
