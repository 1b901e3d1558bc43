"""cache.epochs({dataset: weight}): what is held, read, told and repeated, with a scripted daemon."""

from __future__ import annotations

import logging
from collections import Counter

import numpy as np
import pytest

from cachecd_client.errors import CallerError, DaemonUnreachableError, RequestError
from cachecd_client.protocol import Acquire, Refused, Released, ReportCorrupt
from cachecd_client.runs.mixture import Weights
from tests.client.conftest import CacheDir, lending, locked
from tests.client.records import labels
from tests.client.test_epoch import corrupt

FIRST = {"web": 0, "code": 1000, "talk": 2000}  # the label of each dataset's first record
WEIGHTS = {"web": 0.75, "code": 0.25}


@pytest.fixture
def sizes():
    """Shards of 10 records that epoch k has of each dataset, and "window"; a test may change them."""
    return {"web": lambda k: 4 + k, "code": lambda k: 2, "talk": lambda k: 1}


@pytest.fixture
def folders(tmp_path):
    root = tmp_path / "cache"
    root.mkdir()
    return {name: CacheDir(root, dataset=name, first=first) for name, first in FIRST.items()}


@pytest.fixture
def granting(daemon, folders, sizes):
    def make(request):
        name, epoch = request.dataset, request.epoch
        return folders[name].manifest(
            f"{name}-{epoch}",
            sizes[name](epoch),
            job=request.job,
            epoch=epoch,
            seed=FIRST[name],
            window=sizes.get("window"),
        )

    return daemon(lending(make))


@pytest.fixture
def cache(hasty_cache):
    return hasty_cache


@pytest.fixture
def held(folders):
    return lambda: {p.stem for p in folders["web"].root.glob("leases/*.json") if locked(p)}


def by_dataset(found) -> Counter:
    names = {first // 1000: name for name, first in FIRST.items()}
    return Counter(names[label // 1000] for label in found)


def near(found: Counter, weights: dict[str, float]) -> bool:
    """Whether each count is within four standard deviations of its share."""
    whole, n = sum(weights.values()), found.total()
    return all(
        abs(found[name] - n * w / whole) <= 4 * (n * w / whole * (1 - w / whole)) ** 0.5
        for name, w in weights.items()
    )


def test_epoch_ends_with_the_first_dataset_that_is_through(cache):
    every = Counter()
    for epoch in cache.epochs(WEIGHTS, 8):
        loader = epoch.numpy(batch_size=4)
        found = labels(loader)
        assert len(found) == 4 * len(loader) == epoch.length // 4 * 4
        assert len(set(found)) == len(found)
        counts = by_dataset(found)
        sizes = {part["dataset"]: part["set_records"] for part in epoch.report()["mixed"]}
        assert any(sizes[name] - counts[name] < 4 for name in WEIGHTS)
        every += counts
    assert near(every, WEIGHTS)


def test_a_set_that_is_refused_releases_those_of_the_other_datasets(cache, granting, held):
    granting.instead(lambda request: Refused(request.id, "impossible", "too small"), 1, "web")
    with pytest.raises(RequestError):
        list(cache.epochs(WEIGHTS, 2))
    assert "code" in {request.dataset for request in granting.of(Acquire)}
    assert held() == set()


def test_weights_that_the_loop_changes_count_from_the_next_epoch(cache, granting):
    weights = {"web": 3, "code": 1}
    shares, named = [], []
    for epoch in cache.epochs(weights, 3, steps_per_epoch=1):
        named.append(epoch.weights)
        shares.append(by_dataset(labels(epoch.numpy(batch_size=200))))
        weights.update(web=epoch.epoch, code=1, talk=0)
    assert near(shares[0], {"web": 3, "code": 1})
    assert shares[1] == {"code": 200}
    assert near(shares[2], {"web": 1, "code": 1})
    assert named[2] == {"web": 0.5, "code": 0.5, "talk": 0.0}
    leased = [request.dataset for request in granting.of(Acquire)]
    assert leased == ["code", "web", "code", "code", "web"], "what has no weight is not leased"


def test_a_function_gives_the_weights_by_the_runs_progress(cache):
    asked = []

    def curriculum(progress):
        asked.append(progress)
        return {"web": 1 - progress / 2, "code": progress / 2}

    read = [
        by_dataset(labels(epoch.numpy(batch_size=200)))
        for epoch in cache.epochs(curriculum, records=1000, steps_per_epoch=2)
    ]
    assert asked == pytest.approx([0, 0.4, 0.8])
    assert read[0] == {"web": 400}
    assert near(read[1], {"web": 0.8, "code": 0.2})
    assert near(read[2], {"web": 0.6, "code": 0.4})
    assert [one.total() for one in read] == [400, 400, 200]


def test_ids_name_the_dataset_by_its_place_in_the_weights(cache):
    weights = {"web": 1, "talk": 0, "code": 1}
    for epoch in cache.epochs(weights, 1):
        for batch in epoch.numpy(batch_size=10, ids=True):
            names = [list(weights)[place] for place in batch["_dataset"]]
            first = [FIRST[name] for name in names]
            shards = [2 * (number // 3) + number % 3 for number in batch["_shard"].tolist()]
            records = np.array(shards) * 10 + batch["_record"] + first
            assert records.tolist() == batch["label"].tolist()
        assert "_dataset" not in next(iter(epoch.numpy(batch_size=10)))
    plain = next(iter(cache.acquire("web").numpy(batch_size=10, ids=True)))
    assert "_dataset" not in plain


def test_the_order_is_of_seed_and_sets_alone_and_ranks_share_it(cache):
    def run(weights, **options):
        return [labels(e.numpy(batch_size=6, **options)) for e in cache.epochs(weights, 2)]

    whole = run(WEIGHTS)
    assert run({"code": 1, "web": 3}, threads=1, prefetch_bytes=0) == whole
    assert run(WEIGHTS, seed=5) != whole
    ranks = [run(WEIGHTS, rank=rank, world=2) for rank in (0, 1)]
    assert [len(first) for first in ranks[0]] == [len(second) for second in ranks[1]]
    for first, second, alone in zip(*ranks, whole, strict=True):
        shared = set(first + second)
        assert len(shared) == len(first) + len(second) >= len(alone) - 6
        assert shared <= set(alone) or shared >= set(alone)


def test_large_sets_share_the_window_and_small_ones_are_whole(cache, sizes):
    sizes["web"] = lambda k: 12
    draws = []
    for sizes["window"] in (None, 10_000):
        for epoch in cache.epochs({"web": 0.9, "code": 0.1}, 1):
            code, web = (leased.manifest.num_bytes for leased in epoch._sets)
            assert code < 5_000 < 10_000 < web
            loader = epoch.numpy(batch_size=7)
            draws.append([label // 1000 for label in labels(loader)])
            windows = [of for of, _ in loader.part.selection.mixture[3]]
            assert windows == ([0, 0] if sizes["window"] is None else [0, 10_000 - code])
    assert draws[0] == draws[1]


def test_a_daemon_that_goes_between_two_sets_leaves_none_of_them_held(cache, granting, held):
    granting.instead(lambda request: None, 1, "web")
    epochs = cache.epochs(WEIGHTS, 2)
    next(epochs)
    assert next(epochs).lease == "code-0+web-0"
    assert held() == {"code-0", "web-0"}
    epochs.close()
    assert held() == set()
    granting.kill()
    with pytest.raises(DaemonUnreachableError):
        next(cache.epochs(WEIGHTS, 1))


def test_a_report_says_what_is_of_each_dataset(cache, caplog):
    caplog.set_level(logging.INFO, "cachecd")
    for epoch in cache.epochs(WEIGHTS, 2, steps_per_epoch=20):
        list(epoch.numpy(batch_size=4))
        assert cache.report("code") == cache.report("web") == cache.report() == epoch.report()
    report = epoch.report()
    assert (report["dataset"], report["steps"], report["records"]) == ("web+code", 20, 80)
    assert (report["set_records"], report["growth"]) == (70, pytest.approx(7 / 6, rel=0.01))
    names = "dataset", "weight", "set_records", "reads_per_record"
    code, web = ([part[name] for name in names] for part in report["mixed"])
    assert (code, web) == (["code", 0.25, 20, 40 / 20], ["web", 0.75, 50, 120 / 50])
    assert report["reads_per_record"] == pytest.approx(0.25 * 2 + 0.75 * 2.4)
    assert "epoch 1 of web+code: 20 steps, waited" in caplog.text


def test_each_set_is_reported_by_its_weight(cache, granting):
    for epoch in cache.epochs(WEIGHTS, 1, steps_per_epoch=3):
        records = len(labels(epoch.numpy(batch_size=8)))
    reported = {request.lease: request.delivered for request in granting.of(Released)}
    shares = {"web": 0.75 * records / 40, "code": 0.25 * records / 20}
    assert reported == pytest.approx({f"{name}-0": min(1.0, s) for name, s in shares.items()})


def test_a_corrupt_record_is_reported_as_its_datasets(cache, granting, folders):
    offset = corrupt(str(folders["code"].shard(2)), 3)
    for epoch in cache.epochs({"web": 0.5, "code": 0.5}, 1):
        found = labels(epoch.numpy(batch_size=1))
        assert len(found) == epoch.length
        assert 1013 not in found
        assert epoch.report()["corrupt_records"] == 1
    (report,) = granting.of(ReportCorrupt)
    assert (report.dataset, report.shard, report.offset) == ("code", 1, offset)


def test_what_a_mixture_cannot_be_read_as_is_refused_with_what_can(cache, sizes):
    epoch = next(cache.epochs(WEIGHTS, 1))
    with pytest.raises(CallerError, match=r"epoch\.tf\(\) of each epoch"):
        epoch.tf_dataset(4)
    with pytest.raises(CallerError, match="a mixture is always shuffled"):
        epoch.numpy(batch_size=4, shuffle=False)
    with pytest.raises(
        CallerError, match=r"has \d\d records, but a step across all ranks needs 640: choose"
    ):
        epoch.numpy(batch_size=640)
    sizes["code"] = lambda k: 0
    with pytest.raises(CallerError, match="the set of code has a weight, but no records"):
        next(cache.epochs(WEIGHTS, 1, job="another")).numpy(batch_size=4)


@pytest.mark.parametrize(
    ("weights", "why"),
    [
        (["web"], "expected a name, or a dict of dataset -> weight"),
        ({7: 1}, "7 is not the name of a dataset"),
        ({"web": "much"}, "weight 'much' of dataset 'web'"),
        ({"web": -1}, "weight -1 of dataset 'web', expected a number of 0 or more"),
        ({"web": float("nan")}, "weight nan of dataset 'web'"),
        ({"web": 0, "code": 0.0}, "the weights of web, code are all 0"),
    ],
)
def test_weights_that_cannot_be_are_refused(weights, why):
    with pytest.raises(CallerError, match=why):
        Weights(weights)
    with pytest.raises(CallerError, match=why):
        Weights(lambda progress: weights).at(0.5)
