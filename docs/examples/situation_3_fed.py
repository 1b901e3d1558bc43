"""A loop that Python fed, fed by native threads instead: two dense layers, PyTorch or TensorFlow.

    python situation_3_fed.py '/data/train-*.tfrecord'

Any TFRecord files with an `image` and a `label` will do; no daemon is needed to try it.
"""

from __future__ import annotations

import glob
import sys


def main() -> None:
    import torch
    from torch import nn

    from cachecd_client import FileSet

    files = FileSet(sorted(glob.glob(sys.argv[1])))
    hidden = [nn.LazyLinear(1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU()]
    model = nn.Sequential(nn.Flatten(), *hidden, nn.Linear(1024, 10))
    model(torch.zeros(1, *files.schema["image"].shape or ()))  # tells the first layer its width
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = files.torch(128, features=["image", "label"], cast={"image": "float32"})
    for batch in loader:  # a step of the loop runs no Python for any single record
        loss = nn.functional.cross_entropy(model(batch["image"] / 255), batch["label"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{len(loader)} steps, {loader.seconds_waited:.3f} s waited for data")


if __name__ == "__main__":
    main()
