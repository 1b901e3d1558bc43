"""What the pages show: their code blocks, and how to run one over small data."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

import cachecd_client

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]
SMALL = {"CACHE__LIMIT": "64MiB", "CACHE__SHARD_SIZE": "256KiB", "SAMPLER__WORKERS": "1"}


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / page).read_text(), re.M | re.S)


def configurations(page: str) -> list[str]:
    """Whole ones; what has no version is a part of one."""
    return [text for text in blocks(page, "yaml") if "version: 1" in text]


def runner(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict]:
    """`run(page, configuration, program, changes, configured)` runs the page's program, with `changes` to
    its text, and with the changes `configured` to its configuration.

    It reads the objects in folder/bucket in place of s3://my-bucket; half are held out. Returns its names.
    """

    def run(
        page: str,
        configuration: int,
        program: int,
        changes: dict[str, str],
        configured: Mapping[str, str] = {},
    ) -> dict:
        text = configurations(page)[configuration]
        for large, small in configured.items():
            assert large in text
            text = text.replace(large, small)
        text = text.replace("s3://my-bucket", f"file://{folder / 'bucket'}")
        text = text.replace("/data/cachecd", str(folder / "cache"))
        path = folder / "shown.yaml"
        text = re.sub(r"first: \w+", "first: 4KiB", text)
        path.write_text(re.sub(r"eval: 0\.\d+", "eval: 0.5", text))
        for key, value in SMALL.items():
            monkeypatch.setenv(f"CACHECD_{key}", value)
        connect = cachecd_client.connect
        monkeypatch.setattr(cachecd_client, "connect", lambda: connect(path))
        source = blocks(page, "python")[program]
        for large, small in {'"cuda"': '"cpu"', **changes}.items():
            assert large in source or large == '"cuda"'
            source = source.replace(large, small)
        scope: dict = {}
        exec(compile(source, page, "exec"), scope)
        return scope

    return run
