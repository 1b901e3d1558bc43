"""The configuration: its keys (models), and how it is read (load).

    address     the parser of source URLs
    values, urls
                the types of single values
    transforms  the steps of a transform
    models, dataset, selection, source, array
                the sections: each key with its type, default, meaning and checks
    identity    the values that decide a generation's content, and name its directory
    keys        the section at each place of a document
    document    YAML -> values that remember their line and column
    overrides   CACHECD_SECTION__KEY=value
    loading     a file and the environment -> a Config, or one line for each mistake

Other rooms use only the exported names.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from cachecd.config.address import EVERY_HOST
from cachecd.config.dataset import DatasetConfig, EvictConfig, GrowConfig
from cachecd.config.models import (
    CacheConfig,
    Config,
    SamplerConfig,
    ServerConfig,
)
from cachecd.config.selection import PartitionConfig, SplitConfig
from cachecd.config.source import AVAILABLE_FORMATS, LabelConfig, SourceConfig
from cachecd.config.transforms import TransformStep
from cachecd.errors import ConfigError
from cachecd.quantities import Percent

__all__ = [
    "AVAILABLE_FORMATS",
    "EVERY_HOST",
    "CacheConfig",
    "Config",
    "DatasetConfig",
    "EvictConfig",
    "GrowConfig",
    "LabelConfig",
    "PartitionConfig",
    "Percent",
    "SamplerConfig",
    "ServerConfig",
    "SourceConfig",
    "SplitConfig",
    "TransformStep",
    "load",
    "placed",
]


def load(path: Path | str, environ: Mapping[str, str] = os.environ) -> Config:
    """Reads the configuration in the file `path`, with ${VAR} and CACHECD_* taken from `environ`.

    ConfigError has one line for each problem, ordered by place: ``file:line:column: key: found,
    expected``, or the variable's name in place of the position. LimitTooSmallError: only `cache.limit` is
    wrong. Checks that the directories in the file exist, and uses no network.
    """
    # Imported here, because importing the YAML reader takes 30 ms, which sampler processes avoid.
    from cachecd.config.loading import load_config

    return load_config(Path(path), environ)


@contextmanager
def placed(path: Path | str, environ: Mapping[str, str] = os.environ) -> Iterator[None]:
    """Completes a ConfigError whose message begins with a key of the configuration at `path`:
    ``file:line:column: key: found, expected``."""
    try:
        yield
    except ConfigError as error:
        from cachecd.config.loading import place_of

        section, *below = str(error).partition(": ")[0].split(".")
        if section not in Config.model_fields:
            raise
        place = place_of(Path(path), environ, (section, *below))
        raise type(error)(f"{place}: {error}") from error
