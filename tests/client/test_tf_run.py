"""cache.tf_dataset: one pipeline over many leases, each held as long as TensorFlow reads its files."""

import os
from contextlib import suppress
from itertools import islice

import pytest

from cachecd_client.errors import CallerError, SchemaError
from cachecd_client.protocol import Acquire, Released
from cachecd_client.schema import Feature, Schema
from cachecd_client.session.cache import connect
from tests.client.conftest import lending, locked
from tests.client.records import schema
from tests.core.processes import until
from tests.frameworks import tf

# Epoch k of the granting daemon has the records 0 .. 20 + 10 k - 1, in files of ten.


def labels(batches, steps: int) -> list[int]:
    return [int(label) for batch in islice(batches, steps) for label in batch["label"].numpy()]


def open_shards() -> list[str]:
    """The shards that this process has open, whoever in it opened them."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # closed meanwhile, as is the directory's own
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return [path for path in found if path.endswith(".tfrecord")]


def test_one_iterator_sees_the_cache_grow_and_each_record_of_a_set_once(cache):
    dataset = cache.tf_dataset("train", 5, features=["label"])
    assert dataset.cardinality() == tf.data.INFINITE_CARDINALITY
    batches = iter(dataset)
    for size in (20, 30, 40):
        found = labels(batches, size // 5)
        assert sorted(found) == list(range(size)) != found


def test_lease_ends_when_the_set_after_the_next_is_taken(cache, granting, cache_dir, manifest):
    """However far the pipeline runs ahead of its consumer."""
    cache_dir.per_shard = 500
    open_then, held_then, reported = [], [], []
    grant = granting.answer

    def answer(request):
        if isinstance(request, Acquire) and request.epoch:
            open_then.append(open_shards())
            held_then.append([locked(manifest(n)) for n in range(request.epoch)])
            reported.append((request.lease, request.delivered))
        return grant(request)

    granting.answer = answer
    batches = iter(cache.tf_dataset("train", 10, features=["label"]))
    assert len(labels(batches, 50)) == 500  # half of the first set
    assert [request.epoch for request in granting.of(Acquire)] == [0]
    labels(batches, 50 + 150 + 10)
    assert open_then == [[], []]
    assert held_then == [[True], [True, True]]
    assert reported == [("train-0", 1.0), ("train-1", 1.0)]
    assert [locked(manifest(number)) for number in range(3)] == [False, True, True]


def test_another_schema_at_a_boundary_is_an_error_that_says_what_has_changed(
    cache, granting, cache_dir
):
    features = {f.name: f for f in schema().features}
    changed = Feature("vector", "float", "float32", (3,))
    later = Schema(tuple({**features, "vector": changed}.values())).to_json()
    changes = {"epoch": 1, "generation": "fedcba9876543210", "schema": later}
    granting.instead(lending(lambda request: cache_dir.manifest("train-1", 3, **changes)), epoch=1)
    told = r"epoch 1 of 'train' has another schema .* Feature\(name='vector'.*\(3,\).*tf_dataset\(\) again"
    with pytest.raises(tf.errors.InvalidArgumentError, match=told):
        labels(iter(cache.tf_dataset("train", 5, features=["label", "vector"])), 10)
    assert granting.of(Released)[-1].lease == "train-1"
    # What is not read may change.
    assert len(labels(iter(cache.tf_dataset("train", 5, features=["label"])), 12)) == 60


def test_leases_end_with_iterators_and_those_nobody_took_with_the_dataset(
    cache, cache_dir, manifest
):
    cache_dir.per_shard = 500
    dataset = cache.tf_dataset("train", 10, features=["label"])
    assert locked(manifest(0))
    batches = iter(dataset)
    next(batches)
    del dataset
    assert locked(manifest(0))
    del batches
    assert not locked(manifest(0))
    dataset = cache.tf_dataset("train", 10, features=["label"])
    assert locked(manifest(1))
    del dataset
    assert not locked(manifest(1))
    with pytest.raises(SchemaError, match="no feature 'lable'"):
        cache.tf_dataset("train", 10, label="lable")
    assert not locked(manifest(2))


def test_the_same_seed_is_the_same_order_in_every_run(granting):
    def run(**options) -> list[int]:
        with connect(granting.endpoint) as cache:
            return labels(iter(cache.tf_dataset("train", 5, features=["label"], **options)), 10)

    chosen = run(seed=3)
    assert chosen == run(seed=3) != run()
    assert chosen[:20] != [label for label in chosen[20:] if label < 20]  # another in each epoch


def test_ranks_share_each_set_and_take_equal_steps(granting, monkeypatch):
    found = []
    for rank in range(2):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
        with connect(granting.endpoint) as cache:
            batches = iter(cache.tf_dataset("train", 5, features=["label"]))
            found.append([labels(batches, 2), labels(batches, 3)])
    for mine, others, size in zip(*found, (20, 30), strict=True):
        assert sorted(mine + others) == list(range(size))


def test_a_global_seed_of_zero_is_one_like_any_other(cache):
    tf.random.set_seed(0)
    try:
        found = labels(iter(cache.tf_dataset("train", 5, features=["label"])), 4)
    finally:
        tf.random.set_seed(None)
    assert sorted(found) == list(range(20)) != found


def test_one_fit_of_keras_sees_the_cache_grow_is_traced_once_and_ends_its_lease(
    cache, granting, manifest
):
    traced, traced_by_steps = [], []
    steps = tf.keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda step, logs: traced_by_steps.append(len(traced))
    )

    class Model(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = tf.keras.layers.Dense(1)

        def call(self, features):
            return self.dense(features["vector"])

        def train_step(self, data):
            traced.append(1)
            return super().train_step(data)

    model = Model()
    model.compile("sgd", "mse")
    dataset = cache.tf_dataset("train", 5, label="label", features=["vector"])
    with cache.acquire("train", 40) as held_out:
        fitted = model.fit(
            dataset, steps_per_epoch=9, epochs=3, shuffle=False, verbose=0, callbacks=[steps],
            validation_data=held_out.tf_dataset(8, label="label", features=["vector"], drop_last=False),
        )  # fmt: skip
    assert len(fitted.history["val_loss"]) == 3
    assert {0, 1, 2, 3} <= {request.epoch for request in granting.of(Acquire)}
    assert len(traced_by_steps) == 27
    assert len(set(traced_by_steps)) == 1
    until(lambda: not any(locked(manifest(request.epoch)) for request in granting.of(Acquire)))
    model.fit(dataset, steps_per_epoch=1, shuffle=False, verbose=0)
    assert granting.of(Acquire)[-1].epoch >= 3


def test_an_input_fn_is_called_again_and_again_by_graphs_and_sessions_as_an_estimator_does(
    cache, granting, manifest
):
    input_fn = cache.input_fn("train", 10, label="label", features=["vector"])
    first = []
    for _ in range(2):
        with tf.Graph().as_default(), tf.compat.v1.Session() as running:
            batches = tf.compat.v1.data.make_initializable_iterator(input_fn())
            following = batches.get_next()
            running.run(batches.initializer)
            found = [running.run(following) for _ in range(5)]
        assert {tuple(features) for features, _ in found} == {("vector",)}
        first.append(sorted(int(label) for _, labels in found[:2] for label in labels))
        del batches, following, running
    assert first[0] == list(range(20)) != first[1]
    begun = [request.epoch for request in granting.of(Acquire)]
    until(lambda: not any(locked(manifest(epoch)) for epoch in begun))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs=0, expected at least 1"),
        ({"batch_size": 2000}, "make no batch of 2000"),
        ({"rank": 0}, "rank=0, world=None: expected both, or neither"),
        ({"features": []}, "expected at least one feature"),
        ({"features": "label"}, r"expected a list of names: \['label'\]"),
        ({"shuffle": "no"}, "shuffle='no', expected True or False"),
        ({"dataset": {"train": 1.0}}, r"epoch\.tf\(\) of each epoch"),
    ],
)
def test_bad_options_are_refused_at_once(cache, options, message):
    with pytest.raises(CallerError, match=message):
        cache.tf_dataset(**{"dataset": "train", "batch_size": 5, **options})
