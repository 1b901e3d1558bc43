"""Which features a mixture's batches have, where its datasets' schemas differ."""

from __future__ import annotations

import pytest

from cachecd.sampler.encoding import encode
from cachecd_client.errors import SchemaError
from cachecd_client.runs.mixture import mixed
from cachecd_client.schema import Feature, Schema
from cachecd_client.session.cache import connect
from tests.client.conftest import GENERATION, CacheDir, lending
from tests.client.records import examples, write

IMAGE = Feature("image", "bytes", "uint8", (8, 8), raw=True)
LABEL = Feature("label", "int64", "int64", ())
TEXT = Feature("text", "bytes", "bytes", ())
TAGS = Feature("tags", "int64", "int64", None)


def named(feature: Feature, *classes: str) -> Feature:
    return Feature(feature.name, feature.kind, feature.dtype, feature.shape, feature.raw, classes)


def schemas(**features: list[Feature]) -> dict[str, Schema]:
    return {name: Schema(tuple(of)) for name, of in features.items()}


def test_what_some_lack_may_be_asked_for_with_a_default_or_if_it_is_ragged():
    two = schemas(web=[LABEL, TEXT, TAGS], code=[LABEL])
    assert mixed(two, ["text", "label"], {"text": b""}) == Schema((TEXT, LABEL))
    assert mixed(two, None, {"text": b""}) == Schema((LABEL, TEXT))
    assert mixed(two, ["tags"]) == Schema((TAGS,))
    with pytest.raises(
        SchemaError, match=r"feature 'text' of 'web' is not in 'code': .* default=\{'text': ...\}"
    ):
        mixed(two, ["text"])
    with pytest.raises(SchemaError, match="no feature 'txt' in any of the datasets web, code"):
        mixed(two, ["txt"])
    with pytest.raises(SchemaError, match=r"features='text', expected a list"):
        mixed(two, "text")


def test_a_label_that_means_other_classes_is_an_error_and_one_that_does_not_say_has_none():
    two = schemas(web=[named(LABEL, "cat", "dog")], code=[named(LABEL, "cat", "cow")])
    with pytest.raises(SchemaError, match="in 'web' and 'code': class 1 is 'dog' and 'cow'"):
        mixed(two)
    others = schemas(web=[LABEL], code=[named(LABEL, "cat")], talk=[named(LABEL, "dog")])
    with pytest.raises(SchemaError, match="in 'code' and 'talk': class 0 is 'cat' and 'dog'"):
        mixed(others)
    assert mixed(schemas(web=[named(LABEL, "cat")], code=[LABEL])) == Schema((LABEL,))
    same = schemas(web=[named(LABEL, "cat")], code=[named(LABEL, "cat")])
    assert mixed(same) == Schema((named(LABEL, "cat"),))


def test_a_mixture_reads_what_its_datasets_have_in_common_and_defaults_for_the_rest(
    tmp_path, daemon
):
    root = tmp_path / "cache"
    root.mkdir()
    web, code = (CacheDir(root, dataset=name) for name in ("web", "code"))
    labels = Schema((LABEL,))
    write(
        root / f"datasets/code/{GENERATION}/shards/0000000000.tfrecord",
        [encode(labels, {"label": n}) for n in range(10)],
        labels,
    )
    write(root / f"datasets/web/{GENERATION}/shards/0000000000.tfrecord", examples(range(10)))
    schema = {"code": {"schema": labels.to_json()}, "web": {}}

    def make(request):
        name = request.dataset
        return {"web": web, "code": code}[name].manifest(name, 1, **schema[name])

    with connect(daemon(lending(make)).endpoint) as cache:
        epochs = cache.epochs({"web": 1, "code": 1}, 1, steps_per_epoch=1)
        epoch = next(epochs)
        assert epoch.schema == labels
        assert next(iter(epoch.numpy(batch_size=20))).keys() == {"label"}
        (batch,) = epoch.numpy(batch_size=20, default={"vector": -1}, ids=True)
        loader = epoch.tf(20, label="vector", default={"vector": -1})
        assert loader.schema.names == ("label", "vector")
        of_code = batch["_dataset"] == 1
        assert (batch["vector"][of_code] == -1).all()
        assert batch["vector"][~of_code][:, 0].tolist() == batch["label"][~of_code].tolist()
        epochs.close()
        schema["web"]["schema"] = {**labels.to_json()}
        schema["web"]["schema"]["features"][0]["shape"] = [2]
        changed = next(cache.epochs({"web": 1, "code": 1}, 1))
        with pytest.raises(SchemaError, match=r"'label' is int64\[\] .* in 'code' and int64\[2\]"):
            changed.numpy(batch_size=4)
