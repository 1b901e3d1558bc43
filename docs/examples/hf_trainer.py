"""The Hugging Face Trainer over a growing cache: python docs/examples/hf_trainer.py

or, by two ranks below one daemon:

cachecd run docs/examples/digits.yaml -- torchrun --nproc-per-node=2 docs/examples/hf_trainer.py

It evaluates and leaves a checkpoint in CHECKPOINTS every fifty steps. With CHECKPOINT=DIRECTORY, one of
an earlier run's, it goes on where that run was.
"""

import json
import os
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from transformers import Trainer, TrainerCallback, TrainingArguments

from cachecd_client import connect

STEPS = 200
PADDING = -100  # what cross_entropy leaves out


class Digits(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(32 * 32, 10)

    def forward(self, image, label):
        logits = self.linear(image.flatten(1) / 255)
        loss = cross_entropy(logits, label, reduction="sum") / (label != PADDING).sum().clamp(min=1)
        return {"loss": loss, "logits": logits}


class Training(torch.utils.data.IterableDataset):
    """The batches of one epoch after the other; `max_steps` says how many the Trainer takes."""

    def __init__(self, cache, state=None):
        self.cache, self.state = cache, state

    def __iter__(self):
        for epoch in self.cache.epochs("train", 1_000_000, state=self.state):
            self.loader = epoch.torch(batch_size=32, features=["image", "label"])
            yield from self.loader


class HeldOut(torch.utils.data.IterableDataset):
    """The pinned set, the same each time. The Trainer gathers batches of all ranks, which have to be of one
    shape: the rows that fill the last one up have no label."""

    def __init__(self, held_out):
        self.loader = held_out.torch(batch_size=32, features=["image", "label"], pad_last=True)

    def __iter__(self):
        for batch in self.loader:
            batch["label"][~batch.pop("_valid")] = PADDING
            yield batch


class CachedTrainer(Trainer):
    """Batches come whole, and each rank its own: nothing to collate, and nothing to divide."""

    def get_train_dataloader(self):
        return torch.utils.data.DataLoader(self.train_dataset, batch_size=None)

    def get_eval_dataloader(self, eval_dataset=None):
        return torch.utils.data.DataLoader(eval_dataset or self.eval_dataset, batch_size=None)


class KeepsPlace(TrainerCallback):
    """The loader's state in each checkpoint; one rank saves for all of its node."""

    def __init__(self, training):
        self.training = training

    def on_save(self, args, state, control, **_):
        folder = Path(args.output_dir, f"checkpoint-{state.global_step}")
        if args.local_process_index == 0:
            (folder / "data.json").write_text(json.dumps(self.training.loader.state_dict()))


def accuracy(predicted):
    rows = predicted.label_ids != PADDING
    hits = predicted.predictions[rows].argmax(1) == predicted.label_ids[rows]
    return {"accuracy": hits.mean(), "records": int(rows.sum())}


def main():
    checkpoint = os.environ.get("CHECKPOINT")
    state = json.loads(Path(checkpoint, "data.json").read_text()) if checkpoint else None
    daemon = None if "CACHECD_ENDPOINT" in os.environ else Path(__file__).with_name("digits.yaml")
    with connect(daemon) as cache, cache.acquire("eval") as eval_set:
        training = Training(cache, state)
        arguments = TrainingArguments(
            os.environ.get("CHECKPOINTS", "checkpoints"),
            max_steps=STEPS,
            learning_rate=1e-2,
            eval_strategy="steps",
            eval_steps=50,
            save_steps=50,
            ignore_data_skip=True,  # the loader goes on by itself
            use_cpu=not torch.cuda.is_available(),  # else several ranks without GPUs train apart
            report_to=[],
        )
        trainer = CachedTrainer(
            Digits(),
            arguments,
            train_dataset=training,
            eval_dataset=HeldOut(eval_set),
            compute_metrics=accuracy,
            callbacks=[KeepsPlace(training)],
        )
        result = trainer.train(resume_from_checkpoint=checkpoint)
        found = trainer.evaluate()
        print(
            f"{result.global_step} steps, loss {result.training_loss:.3f}, accuracy "
            f"{found['eval_accuracy']:.1%} of {found['eval_records']} records"
        )


if __name__ == "__main__":
    main()
