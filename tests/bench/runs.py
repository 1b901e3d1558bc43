"""A whole run: data, warm page cache, contenders by turns, as often as asked for."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bench.contenders import CONTENDERS
from tests.bench.contenders.contract import Contender
from tests.bench.data import CASES, Case, RecordSet, write_shards
from tests.bench.measuring import turns
from tests.bench.worker import Worker

FIGURES = ("mb_s", "cpu_s_gb", "busy_mb_s", "next_ms_gb", "paced_mb_s")

Measurements = dict[str, list[float]]  # figure -> one value a repeat


@dataclass(frozen=True)
class Plan:
    """What to measure. `only`: patterns of CASE/CONTENDER, or none for all."""

    data: Path
    megabytes: float = 1000.0
    repeats: int = 5
    seconds: float = 0.5
    only: Sequence[str] = ()

    def wants(self, case: Case, contender: Contender) -> bool:
        name = f"{case.name}/{contender.name}"
        return not self.only or any(fnmatch.fnmatchcase(name, pattern) for pattern in self.only)


@dataclass
class Results:
    """What was measured, by case and contender, and why other contenders were not."""

    measured: dict[str, dict[str, Measurements]] = field(default_factory=dict)
    verified: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)  # by CASE/CONTENDER


def wanted(plan: Plan) -> list[Contender]:
    return [c for c in CONTENDERS.values() if any(plan.wants(case, c) for case in CASES.values())]


def run(plan: Plan, say: Callable[[str], None]) -> Results:
    """Measures all that the plan wants and that is there. `say` is told what goes on."""
    results = Results()
    contenders = wanted(plan)
    with ExitStack() as stack:
        workers: dict[tuple[str, ...], Worker] = {}
        for contender in contenders:
            if contender.imports not in workers:  # all load at the same time
                workers[contender.imports] = stack.enter_context(Worker(contender.imports))
        for contender in contenders:
            if why := workers[contender.imports].absent():
                results.absent[contender.name] = why
        for case in CASES.values():
            here = [c for c in contenders if plan.wants(case, c) and c.name not in results.absent]
            if here:
                _measure(
                    plan, RecordSet(plan.data, case, plan.megabytes), here, workers, results, say
                )
    return results


def _measure(
    plan: Plan,
    records: RecordSet,
    contenders: list[Contender],
    workers: dict[tuple[str, ...], Worker],
    results: Results,
    say: Callable[[str], None],
) -> None:
    case = records.case.name
    measured = results.measured.setdefault(case, {})
    verified = results.verified.setdefault(case, {})

    def failed(contender: Contender, why: str) -> None:
        results.failed[f"{case}/{contender.name}"] = why
        contenders.remove(contender)
        say(f"{case}/{contender.name} failed: {why}")

    def task(contender: Contender, do: str, **more: Any) -> dict[str, Any]:
        return workers[contender.imports].do(
            do=do,
            contender=contender.name,
            case=case,
            data=str(plan.data.resolve()),
            megabytes=plan.megabytes,
            **more,
        )

    if not records.folder("tfrecord").exists():
        say(f"{case}: writing {records.num_records} records")
    records.make("tfrecord", write_shards)
    for contender in list(contenders):
        if not records.folder(contender.form).exists():
            say(f"{case}: the same records as {contender.form}")
            answer = task(contender, "convert")
            if "failed" in answer:
                failed(contender, answer["failed"])
    for repeat in range(plan.repeats):
        warm(records.folder(form) for form in sorted({c.form for c in contenders}))
        order = turns(contenders, repeat)
        for number, contender in enumerate(order, 1):
            say(
                f"{case}: repeat {repeat + 1} of {plan.repeats}, {number} of {len(order)}, "
                f"{contender.name}"
            )
            answer = task(contender, "measure", seconds=plan.seconds, verify=repeat == 0)
            if "failed" in answer:
                failed(contender, answer["failed"])
                measured.pop(contender.name, None)
                continue
            done = answer["done"]
            if "whole" in done:
                verified[contender.name] = {key: done[key] for key in ("records", "whole")}
            values = measured.setdefault(contender.name, {})
            for figure in FIGURES:
                if figure in done:
                    values.setdefault(figure, []).append(done[figure])


def warm(folders: Any) -> None:
    """Reads all files, so that the page cache holds them, and waits for what is still unwritten."""
    os.sync()
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file():
                with open(path, "rb", buffering=0) as file:
                    buffer = bytearray(1 << 20)
                    while file.readinto(buffer):
                        pass
