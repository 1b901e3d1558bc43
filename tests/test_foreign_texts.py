"""Texts that users' code, keys and stores say: none of them stops what is saved, and none is mixed up."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cachecd.catalog import Catalog, SavedPlan
from cachecd.cli.status import _say
from cachecd.events import SavePlan
from cachecd.model import ObjectInfo, Outcome, SetAside, ShardId, UnitSlice
from cachecd.sampler import pages
from cachecd.sampler.messages import LONGEST_REASON, Failed, Made, pack, unpack
from cachecd.saving import PlanSaver

TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=()), max_size=20),
    st.sampled_from(["\ud83d", "a\ud800.jpg", "caf\udce9.jpg", "\0", "\x1b[2J", "x" * 100_000]),
)
AS_THEY_ARE = settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def plan_of(name: str) -> SavedPlan:
    return SavedPlan(name, {}, ())


@AS_THEY_ARE
@given(keys=st.lists(TEXTS, min_size=1, max_size=4, unique=True), reason=TEXTS)
def test_every_text_is_saved_and_two_keys_never_become_one(tmp_path_factory, keys, reason):
    path = tmp_path_factory.mktemp("texts") / "catalog.sqlite"
    catalog = Catalog(path)
    saver = PlanSaver(catalog, plan_of)
    asides = tuple(SetAside(n, key, reason) for n, key in enumerate(keys))
    names = tuple((key, 0) for key in keys)
    saver.save(SavePlan("train", set_aside=asides, excluded=names))
    assert not saver.behind
    catalog.close()
    catalog = Catalog(path)
    assert tuple(catalog.set_aside("train")) == asides
    assert sorted(catalog.excluded("train")) == sorted(names)
    catalog.close()


@AS_THEY_ARE
@given(key=TEXTS, reason=TEXTS, label=TEXTS)
def test_a_samplers_word_comes_with_every_key_as_it_is_and_no_reason_too_long(key, reason, label):
    shard = ShardId("train", 1)
    unit = UnitSlice(3, key, 1, label=label)
    aside = (SetAside(2, key, reason, True),)
    outcome = Outcome(1, 1, 1, 1, 1, 1.0, (unit,), aside)
    for message in (Made(shard, outcome), Failed(shard, "worker", reason, unit=2)):
        found = unpack(pack(message)[4:])
        if isinstance(found, Made):
            assert found.outcome.remainder == (unit,)
            assert found.outcome.set_aside[0].key == key
            said = [found.outcome.set_aside[0].reason]
        else:
            assert isinstance(found, Failed)
            said = [found.reason]
        for why in said:
            assert why == reason or len(reason) > LONGEST_REASON >= len(why) - len(" [...] ")
            assert reason.startswith(why[:400])
            assert reason.endswith(why[-400:])


@AS_THEY_ARE
@given(units=st.lists(st.tuples(TEXTS, TEXTS, TEXTS), max_size=4), reason=TEXTS)
def test_a_listers_word_comes_with_every_text_as_it_is_and_no_reason_too_long(units, reason):
    page = pages.Page([ObjectInfo(key, 1, etag, 0, label) for key, etag, label in units])
    assert pages.unpack(pages.pack(page)[4:]) == page
    refused = pages.unpack(pages.pack(pages.Refused("source", reason))[4:])
    assert isinstance(refused, pages.Refused)
    assert len(refused.reason) <= LONGEST_REASON + len(" [...] ")


def test_a_command_that_cannot_be_stored_is_dropped_and_those_after_it_are_saved(tmp_path: Path):
    catalog = Catalog(tmp_path / "catalog.sqlite")
    saver = PlanSaver(catalog, plan_of)
    saver.save(SavePlan("train", set_aside=(SetAside(1 << 80, "key", "why"),)))
    saver.save(SavePlan("train", set_aside=(SetAside(1, "key", "why"),)))
    assert not saver.behind
    assert [aside.unit for aside in catalog.set_aside("train")] == [1]
    saver.begin("train")
    catalog.close()


@AS_THEY_ARE
@given(text=TEXTS)
def test_every_text_can_be_printed_and_reaches_no_terminal_as_it_is(capsys, text):
    _say(text)
    said = capsys.readouterr().out.removesuffix("\n")
    assert said.isprintable()
    json.dumps(text).encode("ascii")
