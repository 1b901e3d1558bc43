"""The situations run, judge what they measure, and their examples are what this version takes."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from cachecd.config import load
from tests.bench.shortform import run
from tests.bench.situations.__main__ import SITUATIONS
from tests.bench.situations.places import EXAMPLES
from tests.bench.situations.report import Bar, Report

HERE = Path(__file__).parent / "situations"


# Twenty seconds of both cores, which a run of all tests has not to spare.
@pytest.mark.long
def test_a_situation_measures_its_ways_and_leaves_nothing_behind(tmp_path_factory, tmp_path):
    folder = tmp_path_factory.mktemp("s")
    found, printed = run(
        "situations", "5", "--short", "--folder", str(folder), figures=tmp_path / "figures.json"
    )
    figures = found["5"]["figures"]
    assert figures.keys() == {"in a DataLoader", "moved out"}
    assert all(way["images_s"][0] > 0 for way in figures.values())
    assert figures["moved out"]["made_s"][0] > 0
    assert printed.startswith("## 5. A slow step moved out of the input path")
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("number", SITUATIONS)
def test_every_situation_has_a_module_and_an_example(number):
    assert (HERE / f"{SITUATIONS[number]}.py").exists()
    assert list(EXAMPLES.glob(f"situation_{number}_*.py"))


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("situation_*.py")))
def test_every_example_is_a_program(name):
    compile((EXAMPLES / name).read_text(), name, "exec")


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("situation_*.yaml")))
def test_every_configuration_of_an_example_is_one(name):
    assert load(EXAMPLES / name, {}).datasets["train"]


@pytest.fixture
def learner():
    from tests.bench.situations import learner  # which imports torch

    return learner


def test_an_accuracy_counts_as_reached_when_it_stays_for_three_snapshots(learner):
    curve = [(1, 70), (2, 86), (3, 84), (4, 86), (5, 87), (6, 86), (7, 80)]
    assert learner.reached(curve, 70) == 1
    assert learner.reached(curve, 85) == 4
    assert math.isinf(learner.reached(curve, 87))


def test_the_final_accuracy_is_the_mean_of_the_last_tenth(learner):
    assert learner.final([(second, 50.0 if second < 90 else 80.0) for second in range(101)]) == 80


def test_a_bar_is_judged_by_the_median_and_never_is_missed():
    met = Bar("at most", 0.6, [0.5, 0.9, 0.6])
    missed = Bar("at least", 0.95, [0.9, 0.94, 0.99], at_least=True)
    never = Bar("never", 2.0, [1.0, math.inf, math.inf])
    assert [bar.met for bar in (met, missed, never)] == [True, False, False]
    text = "\n".join(Report("t", "s", bars=[met, missed, never]).markdown())
    assert "| at most | ≤ 0.6 | 0.60 (0.50-0.90) | met |" in text
    assert "| never | ≤ 2 | never (1.00-never) | **missed** |" in text
    assert Report("t", "s", bars=[never]).document()["bars"]["never"]["values"] == [1.0, None, None]
