"""How fast JSON Lines become windows of tokens: `python -m tests.bench.text`

Text files of this machine (Python, C headers, HTML, manuals) become JSON Lines, compressed by gzip and
zstd, on a real S3 server. Each is made into windows of 2,049 tokens, by turns, by a hand-written loop (a
stream, orjson, `tokenizers` in batches of a MiB, NumPy; files that are synced) and by the daemon, from its
start to its last sealed shard. Both use two processes. Processor seconds are those of the processes that do
this work, without the server's.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.bench.measuring import cpu_seconds_of, descendants, spread, turns
from tests.bench.worker import ROOT
from tests.e2e.daemons import ExecutedDaemon
from tests.stores import S3Server, s3_server

BUCKET, WINDOW, STRIDE = "text", 2049, 2048
OBJECTS, LONGEST = 16, 200_000  # characters of a document
VOCABULARY = 16_384
SUFFIXES = (".py", ".h", ".hpp", ".html", ".md", ".rst", ".txt", ".c", ".js", ".pyi")
SUFFIX = {"gzip": ".jsonl.gz", "zstd": ".jsonl.zst"}
END = "<|endoftext|>"


def say(what: str) -> None:
    sys.stderr.write(f"{what}\n")


def documents(megabytes: float) -> Iterator[str]:
    """Different texts of this machine, in the order of their paths."""
    left, seen = megabytes * 1e6, set()
    for root in (sys.prefix, "/usr/lib", "/usr/include", "/usr/share"):
        for folder, folders, names in os.walk(root):
            folders.sort()
            for name in sorted(names):
                if not name.endswith(SUFFIXES) or os.path.islink(path := f"{folder}/{name}"):
                    continue
                try:
                    text = Path(path).read_text()[:LONGEST]
                except (OSError, UnicodeDecodeError):
                    continue
                if len(text) < 200 or (key := hash(text)) in seen:
                    continue
                seen.add(key)
                yield text
                left -= len(text.encode())
                if left < 0:
                    return
    raise SystemExit(f"this machine has {left / 1e6:.0f} MB of text too little")


def write_corpus(folder: Path, megabytes: float) -> None:
    """Writes the objects of both compressions, and tokenizer.json."""
    from backports import zstd
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    draft = folder.with_name(f"{folder.name}.new")
    for kind in SUFFIX:
        (draft / kind).mkdir(parents=True, exist_ok=True)
    lines: list[list[bytes]] = [[] for _ in range(OBJECTS)]
    sample: list[str] = []
    for number, text in enumerate(documents(megabytes)):
        lines[number % OBJECTS].append(json.dumps({"id": number, "text": text}).encode() + b"\n")
        if number % 20 == 0:
            sample.append(text)
    for number, each in enumerate(lines):
        body = b"".join(each)
        packed = {"gzip": gzip.compress(body, 6, mtime=0), "zstd": zstd.compress(body)}
        for kind, data in packed.items():
            (draft / kind / f"{number:04}{SUFFIX[kind]}").write_bytes(data)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(sample, trainer)
    tokenizer.save(str(draft / "tokenizer.json"))
    draft.rename(folder)


def by_hand(kind: str, tokenizer: str, out: str, keys: Sequence[str]) -> int:
    """The loop that a person would write, over some objects; returns the number of tokens in windows."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    import zlib

    import boto3
    import numpy as np
    import orjson
    from backports import zstd
    from tokenizers import Tokenizer

    encoder = Tokenizer.from_file(tokenizer)
    end = encoder.token_to_id(END)
    client = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"])
    total = 0
    for key in keys:
        body = client.get_object(Bucket=BUCKET, Key=key)["Body"]
        inflater: Any = zlib.decompressobj(31) if kind == "gzip" else zstd.ZstdDecompressor()
        rest, texts, size, tokens = b"", list[str](), 0, list[Any]()

        def encode(texts: list[str], tokens: list[Any]) -> None:
            found = encoder.encode_batch_fast(texts, add_special_tokens=False)
            tokens += [np.array([*each.ids, end], np.uint16) for each in found]

        for chunk in body.iter_chunks(1 << 20):
            lines = (rest + inflater.decompress(chunk)).split(b"\n")
            rest = lines.pop()
            for line in lines:
                text = orjson.loads(line)["text"]
                texts.append(text)
                size += len(text)
                if size > 1 << 20:
                    encode(texts, tokens)
                    texts, size = [], 0
        encode(texts, tokens)
        stream = np.concatenate(tokens)
        windows = np.lib.stride_tricks.sliding_window_view(stream, WINDOW)[::STRIDE]
        with open(f"{out}/{Path(key).name}.bin", "wb") as file:
            file.write(np.ascontiguousarray(windows).tobytes())
            file.flush()
            os.fsync(file.fileno())
        total += windows.size
    return total


def run_by_hand(server: S3Server, kind: str, corpus: Path, folder: Path) -> dict[str, float]:
    keys = [f"{kind}/{path.name}" for path in sorted((corpus / kind).iterdir())]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environ = {**os.environ, **server.environ, "PYTHONPATH": path}
    began = time.perf_counter()
    started = []
    for half in (keys[::2], keys[1::2]):
        command = [sys.executable, "-m", "tests.bench.text", "--by-hand", kind]
        command += [str(corpus / "tokenizer.json"), str(folder), *half]
        started.append(subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True))
    tokens, cpu = 0, 0.0
    for process in started:
        out, _ = process.communicate()
        assert process.returncode == 0
        tokens += int(out.split()[0])
        cpu += float(out.split()[1])
    return {"tokens": tokens, "cpu_s": cpu, "seconds": time.perf_counter() - began}


def run_daemon(server: S3Server, kind: str, corpus: Path, folder: Path) -> dict[str, float]:
    file = corpus / "tokenizer.json"
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    source = {"url": f"s3://{BUCKET}/{kind}/", "format": "jsonl", "columns": ["text"]}
    tokenize = {"tokenizer": str(file), "sha256": digest, "append": END}
    transform = [{"tokenize": tokenize}, {"pack": {"window": WINDOW, "stride": STRIDE}}]
    train = {"source": source, "transform": transform, "grow": {"first": "20GiB"}}
    began = time.perf_counter()
    with ExecutedDaemon(
        folder, {"train": train}, server.environ, limit="40GiB", shard_size="4MiB",
        sampler={"workers": 2},
    ) as daemon:  # fmt: skip
        daemon.start()
        first = 0.0
        with daemon.connect() as cache:
            while True:
                status: dict[str, Any] = cache.status()["datasets"]["train"]
                first = first or (time.perf_counter() - began if status["shards"] else 0.0)
                if status["whole"]:
                    break
                assert time.perf_counter() - began < 900, status
                time.sleep(0.2)
        seconds = time.perf_counter() - began
        cpu = cpu_seconds_of([daemon.pid, *descendants(daemon.pid)])
        tokens = status["records"] * WINDOW
    return {"tokens": tokens, "cpu_s": cpu, "seconds": seconds, "first_s": first}


RUNS = {"by hand": run_by_hand, "cachecd": run_daemon}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=ROOT / "build" / "bench")
    parser.add_argument("--megabytes", type=float, default=300.0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--by-hand", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.by_hand:
        kind, tokenizer, out, *keys = options.by_hand
        tokens = by_hand(kind, tokenizer, out, keys)
        sys.stdout.write(f"{tokens} {time.process_time()}\n")
        return 0
    corpus = options.data / f"text-{options.megabytes:g}MB"
    if not corpus.exists():
        say("writing the corpus and its tokenizer")
        write_corpus(corpus, options.megabytes)
    found: dict[str, dict[str, list[dict[str, float]]]] = {}
    with s3_server() as server:
        server.bucket(BUCKET)
        for kind in SUFFIX:
            for path in (corpus / kind).iterdir():
                server.put(BUCKET, {f"{kind}/{path.name}": path.read_bytes()})
        for kind in SUFFIX:
            for repeat in range(options.repeats):
                for name in turns(RUNS, repeat):
                    with tempfile.TemporaryDirectory(prefix="cachecd-text-") as folder:
                        done = RUNS[name](server, kind, corpus, Path(folder))
                    found.setdefault(kind, {}).setdefault(name, []).append(done)
                    say(f"{kind}: {repeat + 1}: {name}: {json.dumps(done)}")
    lines = [
        "| | tokens/s | tokens / processor s | seconds to the first shard |",
        "|---|--:|--:|--:|",
    ]
    for kind, by_name in found.items():
        for name, runs in by_name.items():
            cells = [
                spread([run["tokens"] / run["seconds"] for run in runs], 0),
                spread([run["tokens"] / run["cpu_s"] for run in runs], 0),
                spread([run["first_s"] for run in runs], 1) if "first_s" in runs[0] else "",
            ]
            lines.append(f"| {kind}, {name} | {' | '.join(cells)} |")
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
