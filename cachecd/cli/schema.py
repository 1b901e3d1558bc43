"""`cachecd schema`: the configuration's JSON Schema, for editors and other programs."""

from __future__ import annotations

import json


def command() -> None:
    """Print the JSON Schema of the configuration.

    An editor with a YAML language server completes and checks a configuration that begins with
    "# yaml-language-server: $schema=cachecd.schema.json".
    """
    from cachecd.config import Config

    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Config.model_json_schema(),
        "title": "cachecd configuration, version 1",
    }
    print(json.dumps(schema, indent=2))
