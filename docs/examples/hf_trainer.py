"""The Hugging Face Trainer over a growing cache: python docs/examples/hf_trainer.py"""

import tempfile
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from transformers import Trainer, TrainingArguments

from cachecd_client import connect

STEPS = 100


class Digits(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(32 * 32, 10)

    def forward(self, image, label):
        return {"loss": cross_entropy(self.linear(image.flatten(1) / 255), label)}


class Endless(torch.utils.data.IterableDataset):
    """The batches of one epoch after the other; `max_steps` says how many the Trainer takes."""

    def __init__(self, cache):
        self.cache = cache

    def __iter__(self):
        for epoch in self.cache.epochs("train", 1_000_000):
            yield from epoch.torch(batch_size=32)


class CachedTrainer(Trainer):
    def get_train_dataloader(self):
        # Batches come whole, and each rank its own: nothing to collate, and nothing to divide.
        return torch.utils.data.DataLoader(self.train_dataset, batch_size=None)


with (
    tempfile.TemporaryDirectory() as folder,
    connect(Path(__file__).with_name("digits.yaml")) as cache,
):
    arguments = TrainingArguments(
        folder, max_steps=STEPS, learning_rate=1e-2, report_to=[], save_strategy="no"
    )
    result = CachedTrainer(Digits(), arguments, train_dataset=Endless(cache)).train()
    print(f"{result.global_step} steps, loss {result.training_loss:.3f}")
