"""The model in PyTorch."""

from __future__ import annotations

import torch
from torch import nn

from cachecd.demo.images import CLASSES, SIDE
from cachecd.demo.passes import Passes
from cachecd.demo.trainers import BATCH, HIDDEN, LEARNING_RATE, MOMENTUM
from cachecd_client.epoch import Epoch


class Trainer:
    def __init__(self, seed: int) -> None:
        torch.set_num_threads(1)  # others would only wait in turns for work this small
        torch.manual_seed(seed)
        self._model = nn.Sequential(
            nn.Flatten(), nn.Linear(SIDE * SIDE, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES)
        )
        self._optimizer = torch.optim.SGD(
            self._model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM
        )
        self._loss = nn.CrossEntropyLoss()

    def train(self, epoch: Epoch, passes: Passes) -> None:
        for batch in passes.over(lambda n: epoch.torch(BATCH, seed=epoch.seed + n)):
            self._optimizer.zero_grad()
            loss = self._loss(self._model(batch["image"].float() / 255), batch["label"])
            loss.backward()
            self._optimizer.step()

    @torch.no_grad()
    def accuracy(self, held_out: Epoch) -> float:
        right = 0
        for batch in held_out.torch(BATCH):
            named = self._model(batch["image"].float() / 255).argmax(dim=1)
            right += int((named == batch["label"]).sum())
        return right / held_out.num_records
