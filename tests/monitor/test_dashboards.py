"""The dashboard and the alerts: written by their program, and about metrics that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from cachecd.monitor.dashboards import ALERTS, ROWS, alerts, dashboard, files
from tests.monitor.documents import busy
from tests.monitor.test_metrics import rendered

DEPLOY = Path(__file__).parents[2] / "deploy"
QUERIES = [query for row in ROWS.values() for panel in row for query in panel.queries]
RULES = [alert.when for alert in ALERTS]


def promtool(*arguments):
    executable = shutil.which("promtool")
    assert executable, "apt install prometheus"
    ran = subprocess.run([executable, *map(str, arguments)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("name", files())
def test_file_is_what_the_program_writes(name):
    same = (DEPLOY / name).read_text() == files()[name]
    assert same, "run python -m cachecd.monitor.dashboards deploy"


@pytest.mark.parametrize("query", QUERIES + RULES)
def test_query_names_only_metrics_and_labels_that_exist(query):
    text = rendered(busy())
    exposed = dict(re.findall(r"^(cachecd\w+)(?:{(.*)})? ", text, re.M))
    names = re.findall(r"cachecd_\w+", query)
    assert names
    assert set(names) <= exposed.keys()
    by = {label for labels in re.findall(r"by \((.*?)\)", query) for label in labels.split(", ")}
    within = set(re.findall(r"(\w+)=~?\"", query))
    known = {label for name in names for label in re.findall(r"(\w+)=", exposed[name])}
    assert (by | within) <= known | {"instance"}


def test_state_of_a_query_exists():
    text = rendered(busy())
    for query in QUERIES + RULES:
        for states in re.findall(r'state=~?"([a-z_|]+)"', query):
            assert all(f'state="{state}"' in text for state in states.split("|"))


def test_first_row_is_open_and_the_others_are_folded():
    panels = dashboard()["panels"]
    assert [each["collapsed"] for each in panels if each["type"] == "row"] == [
        False,
        True,
        True,
        True,
    ]
    assert panels[1]["title"] == "Exposed time by rank"


def test_panels_have_their_own_ids_and_do_not_overlap():
    every = [each for panel in dashboard()["panels"] for each in (panel, *panel.get("panels", ()))]
    assert len({each["id"] for each in every}) == len(every)
    places = [
        (grid["x"] + x, grid["y"] + y)
        for panel in dashboard()["panels"]
        for grid in [panel["gridPos"]]
        for x in range(grid["w"])
        for y in range(grid["h"])
    ]
    assert len(set(places)) == len(places)


@pytest.mark.long
def test_promtool_accepts_the_alerts_and_every_query(tmp_path):
    promtool("check", "rules", DEPLOY / "prometheus" / "alerts.yaml")
    named = {"$__rate_interval": "5m", "$instance": ".*", "$dataset": ".*"}
    rules = []
    for number, query in enumerate(QUERIES):
        for variable, value in named.items():
            query = query.replace(variable, value)
        rules.append({"record": f"query:{number}", "expr": query})
    (tmp_path / "queries.yaml").write_text(json.dumps({"groups": [{"name": "q", "rules": rules}]}))
    promtool("check", "rules", tmp_path / "queries.yaml")


@pytest.mark.long
def test_waiting_rank_raises_the_alert(tmp_path):
    rank = '{instance="n", dataset="train", job="resnet", rank="%d"}'
    series = [
        (f"cachecd_trainer_blocked_seconds_total{rank % 0}", "0+3x60"),
        (f"cachecd_trainer_step_seconds_total{rank % 0}", "0+57x60"),
        (f"cachecd_trainer_blocked_seconds_total{rank % 1}", "0+15x60"),
        (f"cachecd_trainer_step_seconds_total{rank % 1}", "0+45x60"),
    ]
    [rule] = [each for each in alerts()["groups"][0]["rules"] if each["alert"] == ALERTS[0].name]
    (tmp_path / "alerts.yaml").write_text(json.dumps({"groups": [{"name": "a", "rules": [rule]}]}))
    summary = "resnet waits for data for 25% of the time"
    expected = {
        "exp_labels": {"severity": "warning", "instance": "n", "dataset": "train", "job": "resnet"},
        "exp_annotations": {"summary": summary, "description": "Run `cachecd doctor` on n."},
    }
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series],
        "alert_rule_test": [
            {"eval_time": "5m", "alertname": rule["alert"], "exp_alerts": []},
            {"eval_time": "30m", "alertname": rule["alert"], "exp_alerts": [expected]},
        ],
    }
    path = tmp_path / "test.yaml"
    path.write_text(json.dumps({"rule_files": ["alerts.yaml"], "tests": [test]}))
    promtool("test", "rules", path)
