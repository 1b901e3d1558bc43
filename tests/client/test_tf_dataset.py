"""tf_dataset: a stock pipeline, parsed by the schema."""

from contextlib import nullcontext

import pytest

from cachecd_client.errors import CallerError
from cachecd_client.report.summary import line
from tests.client.conftest import beside
from tests.client.records import labels
from tests.frameworks import tf

N, EACH = 53, 10


def test_bfloat16_and_ragged_and_bytes_arrive_as_tensorflows_own(files):
    batch = next(iter(files.tf_dataset(batch_size=8, shuffle=False)))
    assert batch["bits"].dtype == tf.bfloat16
    assert float(batch["bits"][0, 0]) == 1.0
    assert isinstance(batch["many"], tf.RaggedTensor)
    assert batch["many"].to_list() == [[i] * (i % 4) for i in range(8)]
    assert batch["names"].to_list() == [[str(i).encode(), b"x"] for i in range(8)]
    assert batch["image"].shape == (8, 2, 3)


@pytest.mark.parametrize("world", [1, 2])
def test_a_second_iteration_has_another_order_and_every_rank_its_own_records(files, world):
    ranks = [files.tf_dataset(5, rank=rank, world=world, drop_last=False) for rank in range(world)]
    first, second = ([labels(dataset) for dataset in ranks] for _ in range(2))
    assert all(one != other for one, other in zip(first, second, strict=True))
    for found in (first, second):
        assert sorted(label for share in found for label in share) == list(range(N))
    # Wherever one rank is, the others find their records.
    assert sorted(labels(ranks[0])) == sorted(first[0])


@pytest.mark.parametrize(("batch_size", "world", "shuffle"), [(10, 2, True), (27, 2, False)])
def test_padded_ranks_deliver_every_record_once_in_full_batches(files, batch_size, world, shuffle):
    datasets = [
        files.tf_dataset(batch_size, pad_last=True, shuffle=shuffle, rank=rank, world=world)
        for rank in range(world)
    ]
    assert len({len(list(dataset)) for dataset in datasets} | {len(datasets[0])}) == 1
    valid = []
    for dataset in datasets:
        for batch in dataset:
            mask = batch["_valid"].numpy()
            assert len(batch["label"]) == batch_size
            valid += batch["label"].numpy()[mask].tolist()
            assert not batch["image"].numpy()[~mask].any()
            assert all(row == [] for row in tf.ragged.boolean_mask(batch["many"], ~mask).to_list())
    assert sorted(valid) == list(range(N))


def test_a_short_batch_within_a_strategy_of_several_replicas_is_refused(files, monkeypatch):
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    monkeypatch.setattr(type(strategy), "num_replicas_in_sync", 2)
    with strategy.scope():
        for made in (files.tf_dataset, files.tf):
            with pytest.raises(CallerError, match="pad_last=True"):
                made(10, drop_last=False)
            assert len(made(10, pad_last=True)) == 6


# Of an epoch that is not one pass of its set


def test_over_several_nodes_it_has_the_batches_agreed_on(cache):
    for epoch in cache.epochs("train", 1, agree=beside(9)):
        assert [len(batch["label"]) for batch in epoch.tf_dataset(batch_size=4)] == [4, 4]
        whole = epoch.tf_dataset(batch_size=8, drop_last=False)
        assert [len(batch["label"]) for batch in whole] == [8, 8, 4]
    for epoch in cache.epochs("train", 1, agree=beside(33)):
        whole = epoch.tf_dataset(batch_size=4, drop_last=False)
        assert [len(batch["label"]) for batch in whole] == [4, 4, 4, 3, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("graph", [True, False])
def test_report_names_tensorflow_as_the_reader(cache, graph):
    with tf.Graph().as_default() if graph else nullcontext(), cache.acquire("train") as epoch:
        epoch.tf_dataset(batch_size=5)
    assert epoch.report()["lent"] == "TensorFlow"
    assert line(epoch.report()).startswith(
        "epoch 0 of train: read by TensorFlow, whose waiting is not measured here; "
    )
