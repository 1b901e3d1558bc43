"""Writes the dashboard for Grafana and the alerts for Prometheus.

`python -m cachecd.monitor.dashboards deploy` writes the files of a checkout. They are code, so that a test
can compare their names with the names that /metrics has. The first row of the dashboard answers whether
training waits; the other rows are folded.
"""

from __future__ import annotations

import io
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

_RANK = "instance, dataset, job, rank"
_WHERE = '{instance=~"$instance", dataset=~"$dataset"}'
_CACHE = '{instance=~"$instance"}'
_BLOCKED = "cachecd_trainer_blocked_seconds_total"
_STEP = "cachecd_trainer_step_seconds_total"
_STAGE = "cachecd_experimental_trainer_blocked_stage_seconds_total"
_WIDTH, _HEIGHT = 8, 8  # of a panel; Grafana's grid is 24 wide


@dataclass(frozen=True, slots=True)
class Panel:
    """A plot over time. `queries`: PromQL -> legend. `limits`: value -> colour from there on."""

    title: str
    meaning: str
    unit: str
    queries: dict[str, str]
    stacked: bool = False
    most: float | None = None
    limits: dict[float | None, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Alert:
    """A rule. `minutes`: for how long `when` must hold."""

    name: str
    when: str
    minutes: int
    severity: str
    summary: str
    remedy: str


def _rate(metric: str, by: str, where: str = _WHERE, window: str = "$__rate_interval") -> str:
    return f"sum by ({by}) (rate({metric}{where}[{window}]))"


def _share(by: str, where: str = _WHERE, window: str = "$__rate_interval") -> str:
    """The share of the time in which the loop waited: waiting / (waiting + elsewhere)."""
    blocked, step = (_rate(metric, by, where, window) for metric in (_BLOCKED, _STEP))
    return f"{blocked} / ({blocked} + {step})"


ROWS: dict[str, list[Panel]] = {
    "Does training wait for data?": [
        Panel(
            "Exposed time by rank",
            "Share of the time in which a rank waited for data. Work that is hidden behind the training "
            "step counts 0. Below 0.1, data is not what holds training.",
            "percentunit",
            {_share(_RANK): "{{instance}} {{job}} rank {{rank}}"},
            most=1,
            limits={None: "green", 0.1: "orange", 0.3: "red"},
        ),
        Panel(
            "Exposed time by stage, worst rank",
            "What the loader did while the rank that waits most had no batch.",
            "percentunit",
            {f"max by (job, stage) ({_rate(_STAGE, f'{_RANK}, stage')})": "{{job}} {{stage}}"},
            stacked=True,
        ),
        Panel(
            "Accelerator utilization",
            "1 - exposed time of the rank that waits most: AU of MLPerf Storage, which asks for 0.9.",
            "percentunit",
            {f"1 - max by (dataset, job) ({_share(_RANK)})": "{{job}}"},
            most=1,
            limits={None: "red", 0.7: "orange", 0.9: "green"},
        ),
        Panel(
            "Queue of the emptiest rank",
            "Fill of the queue of batches. A dip without waiting is harmless.",
            "percentunit",
            {f"min by (dataset, job) (cachecd_trainer_queue_ratio{_WHERE})": "{{job}}"},
            most=1,
        ),
        Panel(
            "Records read",
            "Records that all ranks of a job received in a second.",
            "rps",
            {_rate("cachecd_trainer_records_total", "dataset, job"): "{{job}}"},
        ),
        Panel(
            "Bytes read",
            "Bytes of the records that all ranks of a job received in a second.",
            "Bps",
            {_rate("cachecd_trainer_bytes_total", "dataset, job"): "{{job}}"},
        ),
    ],
    "Growth of the cache": [
        Panel(
            "Disk against the limit",
            "Allocated and reserved bytes, and cache.limit.",
            "bytes",
            {
                f"cachecd_cache_used_bytes{_CACHE}": "used",
                f"cachecd_cache_reserved_bytes{_CACHE}": "reserved",
                f"cachecd_cache_limit_bytes{_CACHE}": "limit",
            },
        ),
        Panel(
            "Next set",
            "Bytes of the shards that the next lease names.",
            "bytes",
            {f"cachecd_dataset_data_bytes{_WHERE}": "{{dataset}}"},
        ),
        Panel(
            "Part of the source that was cached",
            "Share of the listed units that were cached at any time.",
            "percentunit",
            {f"cachecd_dataset_coverage_ratio{_WHERE}": "{{dataset}}"},
            most=1,
        ),
        Panel(
            "Shards evicted",
            "Shards that rotation retired in a second.",
            "short",
            {_rate("cachecd_dataset_evicted_shards_total", "dataset"): "{{dataset}}"},
        ),
    ],
    "Ingest": [
        Panel(
            "Fetched",
            "Bytes fetched in a second.",
            "Bps",
            {f"cachecd_dataset_fetch_bytes_per_second{_WHERE}": "{{dataset}}"},
        ),
        Panel(
            "CPU by stage",
            "Processors that all workers use for a stage.",
            "short",
            {
                _rate("cachecd_ingest_stage_seconds_total", "dataset, stage"): (
                    "{{dataset}} {{stage}}"
                )
            },
            stacked=True,
        ),
        Panel(
            "Time by stage, with waiting",
            "Workers that are in a stage. A stage with much more time than CPU waits: for the link, the "
            "store or the disk.",
            "short",
            {
                _rate("cachecd_ingest_stage_wall_seconds_total", "dataset, stage"): (
                    "{{dataset}} {{stage}}"
                )
            },
            stacked=True,
        ),
        Panel(
            "Paused, by reason",
            "Share of the time in which nothing was fetched.",
            "percentunit",
            {_rate("cachecd_ingest_paused_seconds_total", "reason", _CACHE): "{{reason}}"},
            most=1,
        ),
    ],
    "Leases and problems": [
        Panel(
            "Leases",
            "Leases that a process holds, and leases that were granted only.",
            "short",
            {f"cachecd_leases{_WHERE}": "{{dataset}} {{state}}"},
        ),
        Panel(
            "Age of the oldest lease",
            "A lease that stays keeps its shards on the disk.",
            "s",
            {f"cachecd_lease_oldest_seconds{_WHERE}": "{{dataset}}"},
        ),
        Panel(
            "Skipped",
            "Units and single records that could not be used. `cachecd status` has the reasons.",
            "short",
            {
                f"cachecd_dataset_skipped_units_total{_WHERE}": "{{dataset}} units",
                f"cachecd_dataset_skipped_records_total{_WHERE}": "{{dataset}} records",
            },
        ),
        Panel(
            "States",
            "1 while the state holds. `cachecd status` has the reasons.",
            "short",
            {
                f'cachecd_dataset_state{_WHERE[:-1]}, state=~"stopped|rotation_waits|held_back"}}': (
                    "{{dataset}} {{state}}"
                ),
                f"cachecd_cache_state{_CACHE}": "cache {{state}}",
            },
            most=1,
        ),
        Panel(
            "Failures",
            "Tasks that fail now, damaged shards, and replaced workers.",
            "short",
            {
                f"cachecd_failing_tasks{_CACHE}": "failing tasks",
                f"cachecd_corrupt_shards_total{_CACHE}": "damaged shards",
                f"cachecd_worker_restarts_total{_CACHE}": "replaced workers",
            },
        ),
    ],
}

ALERTS = [
    Alert(
        "CachecdTrainingWaits",
        f"max by (instance, dataset, job) ({_share(_RANK, '', '10m')}) > 0.1",
        10,
        "warning",
        "{{ $labels.job }} waits for data for {{ $value | humanizePercentage }} of the time",
        "Run `cachecd doctor` on {{ $labels.instance }}.",
    ),
    Alert(
        "CachecdSourceFails",
        'cachecd_dataset_state{state="stopped"} == 1',
        15,
        "warning",
        "Nothing is fetched for {{ $labels.dataset }}, because its source fails",
        "`cachecd status` has the reason. Training continues with the cached data.",
    ),
    Alert(
        "CachecdDiskStops",
        'cachecd_cache_state{state="stopped"} == 1',
        5,
        "critical",
        "The disk of the cache stops fetching",
        "`cachecd status` has the reason. Look at df, df -i and dmesg.",
    ),
    Alert(
        "CachecdDoesNotRotate",
        'cachecd_dataset_state{state="rotation_waits"} == 1 and on (instance, dataset) '
        'cachecd_dataset_state{state="full"} == 1',
        120,
        "info",
        "The next epoch of {{ $labels.dataset }} will replace nothing",
        "`cachecd status` has the reason, often a lease that stays.",
    ),
    Alert(
        "CachecdTaskFails",
        "cachecd_failing_tasks > 0",
        15,
        "warning",
        "{{ $value }} tasks of the daemon fail",
        "`cachecd status` has the reasons.",
    ),
    Alert(
        "CachecdWorkersMissing",
        "cachecd_workers_alive < cachecd_workers",
        10,
        "warning",
        "Only {{ $value }} worker processes are alive",
        "The daemon's log has the reason why they end.",
    ),
    Alert(
        "CachecdShardsDamaged",
        "increase(cachecd_corrupt_shards_total[1h]) > 0",
        0,
        "warning",
        "{{ $value | humanize }} shards were damaged in the last hour",
        "The daemon makes them again. Look at dmesg and at SMART values of the disk.",
    ),
]


def dashboard() -> dict[str, Any]:
    """Returns Grafana's model of the dashboard."""
    panels: list[dict[str, Any]] = []
    top = 0
    for number, (title, row) in enumerate(ROWS.items()):
        below = [_panel(each, place, top + 1) for place, each in enumerate(row)]
        folded = number > 0
        head = {"type": "row", "title": title, "collapsed": folded, "gridPos": _grid(0, top, 24, 1)}
        panels.append({**head, "panels": below if folded else []})
        panels += [] if folded else below
        top += 1 if folded else 1 + -(-len(row) * _WIDTH // 24) * _HEIGHT
    for number, panel in enumerate(_all(panels), 1):
        panel["id"] = number
    return {
        "title": "cachecd",
        "uid": "cachecd",
        "tags": ["cachecd", "training"],
        "schemaVersion": 39,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus"},
                _variable("instance", "cachecd_up_seconds"),
                _variable("dataset", 'cachecd_dataset_records{instance=~"$instance"}'),
            ]
        },
        "panels": panels,
    }


def _all(panels: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each for panel in panels for each in (panel, *panel.get("panels", ()))]


def _grid(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _variable(label: str, metric: str) -> dict[str, Any]:
    return {
        "name": label,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "$datasource"},
        "query": f"label_values({metric}, {label})",
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "current": {"text": "All", "value": "$__all"},
    }


def _panel(panel: Panel, place: int, top: int) -> dict[str, Any]:
    across = 24 // _WIDTH
    grid = _grid(place % across * _WIDTH, top + place // across * _HEIGHT, _WIDTH, _HEIGHT)
    limits = panel.limits or {None: "green"}
    steps = [{"value": value, "color": colour} for value, colour in limits.items()]
    custom: dict[str, Any] = {"lineWidth": 2, "fillOpacity": 30 if panel.stacked else 0}
    custom["stacking"] = {"mode": "normal" if panel.stacked else "none"}
    custom["thresholdsStyle"] = {"mode": "dashed" if panel.limits else "off"}
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0, "custom": custom}
    if panel.most is not None:
        defaults["max"] = panel.most
    defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": panel.meaning,
        "datasource": {"type": "prometheus", "uid": "$datasource"},
        "gridPos": grid,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}},
        "targets": [
            {"refId": chr(ord("A") + number), "expr": query, "legendFormat": legend}
            for number, (query, legend) in enumerate(panel.queries.items())
        ],
    }


def alerts() -> dict[str, Any]:
    """Returns the rules of Prometheus."""
    rules = [
        {
            "alert": each.name,
            "expr": each.when,
            **({"for": f"{each.minutes}m"} if each.minutes else {}),
            "labels": {"severity": each.severity},
            "annotations": {"summary": each.summary, "description": each.remedy},
        }
        for each in ALERTS
    ]
    return {"groups": [{"name": "cachecd", "rules": rules}]}


def files() -> dict[str, str]:
    """Returns the text of each file, by its path below `deploy`."""
    yaml = YAML()
    yaml.width = 4096
    yaml.indent(mapping=2, sequence=4, offset=2)
    text = io.StringIO()
    text.write("# Written by `python -m cachecd.monitor.dashboards deploy`: change that program.\n")
    yaml.dump(alerts(), text)
    return {
        "grafana/cachecd.json": json.dumps(dashboard(), indent=2) + "\n",
        "prometheus/alerts.yaml": text.getvalue(),
    }


if __name__ == "__main__":
    for name, content in files().items():
        path = Path(sys.argv[1], name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
