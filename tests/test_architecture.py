"""Which part may know which, and other rules of the house that a reviewer should not have to check."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from statistics import median

import pytest

ROOT = Path(__file__).parents[1]
CORE = ROOT / "client" / "core"

# The rooms of `cachecd`, and the rooms that each may import: every arrow there is. `values` is
# the ground: the modules at the root. `client` stands for cachecd_client.
ARROWS = {
    "values": "client",
    "policy": "values",
    "monitor": "values",
    "disk": "values client",
    "config": "values client",
    "stores": "values config client",
    "sampler": "values config stores client",
    "units": "values config stores sampler client",
    "listing": "values config stores units client",
    "executors": "values config stores sampler units",
    "readers": "values stores sampler",
    "daemon": "values policy monitor disk listing config stores sampler units executors client",
    "demo": "client",
    "cli": "values policy disk listing config stores sampler units daemon monitor demo client",
    "__main__": "cli",
}
ALLOWED = {room: frozenset(known.split()) for room, known in ARROWS.items()}
# The rooms of `cachecd_client`. `ground`: the modules at the root, but for the command `index`.
# `cachecd_client` itself has the public names.
CLIENT_ARROWS = {
    "ground": "",
    "report": "ground",
    "loader": "ground",
    "frameworks": "ground report loader",
    "lease": "ground report",
    "files": "ground report loader frameworks",
    "runs": "ground report loader frameworks lease files",
    "session": "ground report loader frameworks lease files runs",
    "index": "ground files",
    "cachecd_client": "ground loader files runs session",
}
CLIENT_ALLOWED = {room: frozenset(known.split()) for room, known in CLIENT_ARROWS.items()}
PURE = {"model", "quantities", "stores.key_ranges", "stores.retry"}
# Nothing here reads a file, a clock, the environment or a source of randomness.
STDLIB = (
    "__future__ binascii bisect collections dataclasses decimal enum fractions functools hashlib heapq "
    "itertools json math operator re struct sys typing zlib"
)
WITHOUT_IO = {*STDLIB.split(), "numpy", "typing_extensions"}


class Modules(Mapping[str, ast.Module]):
    """The modules of a package by name, each parsed when a test first looks at it."""

    def __init__(self, base: Path, package: str) -> None:
        self._paths = {}
        for path in sorted((base / package).rglob("*.py")):
            parts = path.relative_to(base).with_suffix("").parts
            self._paths[".".join(parts).removesuffix(".__init__")] = path

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, name: str) -> ast.Module:
        return parsed(self._paths[name])


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


DAEMON = Modules(ROOT, "cachecd")
CLIENT = Modules(ROOT / "client", "cachecd_client")
PURE |= {name.removeprefix("cachecd.") for name in DAEMON if name.startswith("cachecd.policy")}
MODULES = DAEMON.keys() | CLIENT.keys() | {"cachecd_client._core", "cachecd_client.protocol"}


def imports(tree: ast.AST) -> set[str]:
    """Full names of all imported modules, wherever in the module the import stands."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute here"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                found.add(name if name in MODULES else str(node.module))
    return found


def room_of(module: str) -> str:
    package, _, name = module.partition(".")
    top = name.partition(".")[0]
    if package == "cachecd_client":
        return "client"
    return top if top in ALLOWED else "values"


def client_room_of(module: str) -> str:
    top = module.removeprefix("cachecd_client.").partition(".")[0]
    return top if top in CLIENT_ALLOWED else "ground"


def rooms_known_to(tree: ast.AST) -> set[str]:
    return {
        room_of(name) for name in imports(tree) if name.startswith(("cachecd.", "cachecd_client"))
    }


def test_the_allowed_arrows_make_no_circle():
    ours = {room: known - {"client"} for room, known in ALLOWED.items()}
    assert set(TopologicalSorter(ours).static_order()) == ALLOWED.keys()
    assert set(TopologicalSorter(CLIENT_ALLOWED).static_order()) == CLIENT_ALLOWED.keys()


@pytest.mark.parametrize("module", sorted(DAEMON.keys() - {"cachecd"}))
def test_a_module_imports_only_rooms_that_its_room_may_know(module):
    room = room_of(module)
    assert rooms_known_to(DAEMON[module]) <= ALLOWED[room] | {room}


@pytest.mark.parametrize("module", sorted(CLIENT))
def test_a_client_module_imports_only_rooms_that_its_room_may_know(module):
    room = client_room_of(module)
    known = {name for name in imports(CLIENT[module]) if name.startswith("cachecd_client")}
    assert {client_room_of(name) for name in known} <= CLIENT_ALLOWED[room] | {room}


def test_no_client_modules_import_each_other_in_a_circle():
    """Not even late, or for types alone."""
    known = {name: imports(tree) & CLIENT.keys() for name, tree in CLIENT.items()}
    assert set(TopologicalSorter(known).static_order()) == CLIENT.keys()


@pytest.mark.parametrize("module", sorted(PURE))
def test_policy_and_values_do_no_input_or_output(module):
    tree = DAEMON[f"cachecd.{module}"]
    known = imports(tree)
    ours = {name for name in known if name.startswith("cachecd")}
    assert {name.partition(".")[0] for name in known - ours} <= WITHOUT_IO
    assert ours <= {f"cachecd.{m}" for m in PURE | {"errors"}} | {
        "cachecd_client._core",
        "cachecd_client.protocol",
        "cachecd_client.quantities",
    }
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert not {"open", "print", "input"} & {f.id for f in calls if isinstance(f, ast.Name)}


@pytest.mark.parametrize("module", sorted(CLIENT))
def test_the_client_knows_nothing_of_the_daemon(module):
    assert "cachecd" not in {name.partition(".")[0] for name in imports(CLIENT[module])}


@pytest.mark.parametrize("module", sorted(CLIENT))
def test_the_client_asks_of_a_trainers_image_only_numpy_and_pyzmq(module):
    anywhere = {name.partition(".")[0] for name in imports(CLIENT[module])}
    others = anywhere - set(sys.stdlib_module_names) - {"numpy", "zmq", "cachecd_client"}
    frameworks = {"torch", "tensorflow", "jax", "keras"}
    assert others <= frameworks


def test_importing_the_client_imports_no_framework():
    loaded = subprocess.run(
        [
            sys.executable,
            "-c",
            "from cachecd_client import connect, FileSet; import sys; print(*sys.modules)",
        ],
        capture_output=True,
        check=True,
        text=True,
    ).stdout.split()
    assert {"cachecd_client.session.cache", "cachecd_client.files.file_set"} <= set(loaded)
    assert {"torch", "tensorflow", "jax", "cachecd"}.isdisjoint(loaded)


def test_only_the_core_s_module_files_know_python():
    python = re.compile(r'#\s*include\s*[<"](Python\.h|nanobind/|pybind11/|numpy/)')
    sources = [*CORE.rglob("*.cc"), *CORE.rglob("*.h")]
    knowing = {p.name for p in sources if python.search(p.read_text())}
    assert {name for name in knowing if not name.startswith("module")} == set()
    assert knowing, f"no sources of the core in {CORE}"


def ours() -> Iterator[Path]:
    for folder in ("cachecd", "client/cachecd_client", "client/core", "tests"):
        for suffix in ("py", "pyi", "cc", "h"):
            yield from sorted((ROOT / folder).rglob(f"*.{suffix}"))


# A file is as long as its concept. Of one above 450 lines a reader wants to know why it is whole.
LONG: dict[str, str] = {}


def lengths() -> dict[str, int]:
    return {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in ours()}


def test_a_file_above_450_lines_says_why():
    assert {name: n for name, n in lengths().items() if n > 450 and name not in LONG} == {}
    assert [name for name in LONG if lengths().get(name, 0) <= 450] == []


@pytest.mark.parametrize("folder", ["cachecd", "client/cachecd_client", "client/core", "tests"])
def test_half_of_the_files_of_a_folder_have_less_than_250_lines(folder):
    assert median(n for name, n in lengths().items() if name.startswith(f"{folder}/")) < 250


def test_no_two_test_files_have_one_name():
    """Pytest imports them by it, and refuses the second: but only in a run that has both."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, times in names.items() if times > 1] == []


def test_no_file_is_named_after_nothing():
    nothing = {"utils", "util", "common", "helpers", "helper", "misc", "base", "core", "manager"}
    assert [p for p in ours() if p.stem.strip("_") in nothing and p.suffix != ".pyi"] == []
