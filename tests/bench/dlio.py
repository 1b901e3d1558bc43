"""How many emulated accelerators a machine feeds, measured by DLIO: `python -m tests.bench.dlio`

DLIO (MLPerf Storage's program) runs the settings of resnet50 on H100: batches of 400 records of 115 kB, and
`sleep(0.224)` for the computation of each. Each number of accelerators is a run of so many MPI processes on
warm local TFRecords, by DLIO's own loader and by ours, in turn. The result is the largest number whose
accelerators are used for 90 % of the time. It is no MLPerf result: the data is smaller than the memory.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from tests.bench import report
from tests.bench.worker import ROOT

MARK = "dlio"
ENVIRONMENT = ROOT / "build" / "bench" / "envs" / "dlio"
# Without their dependencies: DLIO names NVIDIA's DALI and CUDA, and imports neither here.
PACKAGES = [
    "dlio-benchmark==2.0.0",
    "hydra-core==1.3.2",
    "omegaconf==2.3.0",
    "antlr4-python3-runtime==4.9.3",
    "mpi4py",
    "openmpi",
    "pydftracer==1.0.2",
    "pandas",
    "psutil",
    "h5py",
    "pillow",
    "pyyaml",
    "python-dateutil",
    "pytz",
    "tzdata",
    "six",
]
RECORD, PER_FILE, BATCH, BAR = 114_660, 1251, 400, 90.0
LOADERS = {
    "DLIO's own, `tf.data`": [],
    "cachecd, `FileSet.tf`": [
        "++workload.reader.data_loader_classname=dlio_loader.CachecdLoader",
        "++workload.reader.data_loader_sampler=iterative",
    ],
}


def prepared() -> Path:
    """The Python of DLIO's environment, which has this environment's packages, too."""
    python = ENVIRONMENT / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(ENVIRONMENT)], check=True)
        (site,) = ENVIRONMENT.glob("lib/python*/site-packages")
        ours = [path for path in sys.path if path.endswith("site-packages")]
        (site / "ours.pth").write_text("\n".join(ours) + "\n")
        for path in (each for folder in ours for each in Path(folder).glob("*editable*.pth")):
            (site / f"z{path.name}").write_bytes(path.read_bytes())  # after the folders
        subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", *PACKAGES], check=True)
    return python


def write_records(folder: Path, files: int) -> None:
    """Writes what DLIO's generator writes, without its index for DALI."""
    import tensorflow as tf

    chance = random.Random(1)
    folder.mkdir(parents=True, exist_ok=True)
    (folder.parent / "valid").mkdir(exist_ok=True)  # DLIO lists it, although it evaluates nothing
    for number in range(files):
        path = folder / f"img_{number:04}_of_{files:04}.tfrecord"
        if path.exists():
            continue
        part = path.with_suffix(".part")
        with tf.io.TFRecordWriter(str(part)) as writer:
            for _ in range(PER_FILE):
                image = tf.train.BytesList(value=[chance.randbytes(RECORD)])
                size = tf.train.Int64List(value=[338])
                feature = {
                    "image": tf.train.Feature(bytes_list=image),
                    "size": tf.train.Feature(int64_list=size),
                }
                example = tf.train.Example(features=tf.train.Features(feature=feature))
                writer.write(example.SerializeToString())
        part.rename(path)


def utilization(
    python: Path, data: Path, files: int, ranks: int, epochs: int, loader: Sequence[str]
) -> float:
    """The accelerators' mean utilization in percent, without the first epoch."""
    with tempfile.TemporaryDirectory() as out:
        options = [
            "workload=resnet50_h100", f"hydra.run.dir={out}", f"++workload.output.folder={out}",
            f"++workload.dataset.data_folder={data}", f"++workload.dataset.num_files_train={files}",
            f"++workload.train.epochs={epochs}", "++workload.workflow.checkpoint=False", *loader,
        ]  # fmt: skip
        mpi = [
            *("mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"),
            *("-np", str(ranks), str(python), "-m", "dlio_benchmark.main"),
        ]
        environ = {
            **os.environ, "PYTHONPATH": str(Path(__file__).parent), "TF_CPP_MIN_LOG_LEVEL": "3",
            "PATH": f"{python.parent}:{os.environ['PATH']}",
        }  # fmt: skip
        run = subprocess.run(
            [*mpi, *options], env=environ, cwd=out, capture_output=True, text=True, timeout=1200
        )
        summary = Path(out) / "summary.json"
        if run.returncode or not summary.exists():
            raise SystemExit(
                f"DLIO ended with {run.returncode}:\n{run.stdout[-3000:]}{run.stderr[-3000:]}"
            )
        found: list[float] = json.loads(summary.read_text())["metric"]["train_au_percentage"]
        return median(found[1:] or found)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=ROOT / "build" / "bench" / "dlio")
    parser.add_argument("--files", type=int, default=24)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 3, 4, 5, 6, 7, 8, 10, 12])
    parser.add_argument(
        "--page", type=Path, help="puts the table into this page, between its marks"
    )
    options = parser.parse_args(arguments)
    if options.page:
        report.put_into(options.page, None, MARK)
    python = prepared()
    write_records(options.data / "train", options.files)
    table: dict[int, dict[str, float]] = {}
    failing: set[str] = set()
    for ranks in options.ranks:
        for name, settings in LOADERS.items():
            if name in failing:
                continue
            found = utilization(
                python, options.data, options.files, ranks, options.epochs, settings
            )
            table.setdefault(ranks, {})[name] = found
            sys.stderr.write(f"{ranks} accelerators, {name}: {found:.1f} %\n")
            if found < BAR - 25:
                failing.add(name)
        if len(failing) == len(LOADERS):
            break
    text = _text(table)
    sys.stdout.write(text + "\n")
    if options.page:
        report.put_into(options.page, text, MARK)
    return 0


def _text(table: dict[int, dict[str, float]]) -> str:
    lines = [f"| accelerators | {' | '.join(LOADERS)} |", "|--:|" + "--:|" * len(LOADERS)]
    for ranks, row in table.items():
        cells = [f"{row[name]:.1f} %" if name in row else "" for name in LOADERS]
        lines.append(f"| {ranks} | {' | '.join(cells)} |")
    most = {
        name: max((ranks for ranks, row in table.items() if row.get(name, 0.0) >= BAR), default=0)
        for name in LOADERS
    }
    most_line = "; ".join(f"{name}: {number}" for name, number in most.items())
    return "\n".join([*lines, "", f"Largest number at {BAR:.0f} % or more: {most_line}."])


if __name__ == "__main__":
    raise SystemExit(main())
