"""A run that can be killed at any time and goes on with the next batch: python docs/examples/resume.py

Kill it and start it again: each line says which records come next.
"""

import json
import os
from pathlib import Path

from cachecd_client import connect

state = Path(os.environ.get("STATE", "resume.json"))
saved = json.loads(state.read_text()) if state.exists() else None

with connect(Path(__file__).with_name("digits.yaml")) as cache:
    for epoch in cache.epochs("train", 3, state=saved):
        loader = epoch.numpy(batch_size=32)
        for step, batch in enumerate(loader, loader.position + 1):
            print(f"epoch {epoch.epoch} step {step} of {len(loader)}: {batch['label'][:8]}")
            # Together with the model, under another name first: a kill must not leave half of it.
            unfinished = state.with_suffix(".new")
            unfinished.write_text(json.dumps(loader.state_dict()))
            unfinished.replace(state)
state.unlink(missing_ok=True)
