"""Which part may know which, and other rules of the house that a reviewer should not have to check."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from statistics import median

import pytest

ROOT = Path(__file__).parents[1]
CORE = ROOT / "client" / "core"

# The parts of `cachecd` and the parts each may import: every arrow there is. A part is a module or a
# package with all in it; `client.` stands for cachecd_client. A new module needs a line here first.
PARTS = {
    # Values
    "model": "",
    "quantities": "",
    "keypattern": "",
    "errors": "client.errors",
    "extras": "errors",
    "layout": "model",
    # Policy: no I/O, no clock
    "generations": "",
    "doubt": "",
    "parts": "model unittext",
    "events": "model parts unitcount",
    "unitcount": "",
    "marks": "",
    "cycle": "client._core",
    "backlog": "model parts",
    "sourcewalk": "cycle model unitcount",
    "plan": "backlog model parts sourcewalk unitcount",
    "shardtable": "model",
    "walk": "shardtable",
    "live": "deliveries model shardtable walk",
    "deliveries": "shardtable",
    "pause": "",
    "second_chance": "model",
    "restraint": "quantities",
    "excluded": "model",
    "rate": "",
    "rules": "",
    "contradictions": "model",
    "dataset": "contradictions doubt errors excluded generations live model pause plan "
    "progress rate rules second_chance shardtable unitcount walk",
    "ledger": "model",
    "room": "dataset ledger",
    "waiting": "dataset events model room",
    "ingest": "dataset events ledger model pause room",
    "rotation": "dataset events model room shardtable",
    "acquire": "dataset events model rules shardtable",
    "state": "acquire dataset events ingest ledger model pause restraint room rotation rules "
    "shardtable waiting",
    # The disk
    "locks": "",
    "digests": "",
    "disk": "errors layout",
    "ownership": "disk errors locks",
    "leases": "disk errors layout locks client.errors client.protocol",
    "blockfile": "disk errors client._core",
    "known": "digests",
    "selection": "config keypattern model unittext",
    "unittext": "model",
    "index": "blockfile disk errors known marks model unittext",
    "indexroom": "errors ledger",
    "database": "disk errors",
    "excludedfile": "disk model client.errors",
    "catalog": "database disk excludedfile live model parts shardtable unittext",
    "reconcile": "catalog disk errors layout live model parts shardtable client._core "
    "client.errors",
    # The samplers, which run in processes of their own
    "config": "errors keypattern quantities",
    "sampler.messages": "model",
    "sampler.draft": "errors layout model parts client._core client.errors client.schema",
    "sampler.lanes": "model",
    "sampler.patience": "",
    "sampler.reach": "",
    "sampler.throttle": "sampler.reach",
    "sampler": "config digests errors extras keypattern model quantities sampler.draft sampler.lanes "
    "sampler.messages sampler.patience sampler.reach sampler.throttle unittext client._core "
    "client.errors client.inflate client.schema",
    # draft: what a lost one leaves
    "executors": "errors model sampler.draft sampler.messages sampler.throttle",
    "readers": "errors extras sampler",
    "executors.lister": "config errors executors model sampler sampler.lanes sampler.messages",
    # The daemon
    "notify": "",
    "server": "client.protocol client.errors",
    "status": "dataset model state waiting",
    "relisting": "errors index marks model",
    "progress": "",
    "listpages": "errors model",
    "listing": "config errors index indexroom listpages model progress relisting sampler "
    "sampler.lanes selection unittext",
    "listings": "config errors events executors.lister index indexroom listing listpages progress "
    "relisting selection unittext",
    "shards": "complaints disk errors events layout model pause verify client._core client.errors",
    "preflight": "config disk errors executors executors.lister generations index layout ledger model "
    "quantities restraint rules sampler.messages client client.resources",
    "firstlook": "config errors extras executors.lister model preflight sampler selection",
    "sample": "config errors layout model preflight sampler sampler.messages selection unittext "
    "client._core client.schema",
    "sampleview": "extras quantities sample client.schema",
    "postmortem": "sampler",
    "survey": "errors model sampler client._core",
    "proposal": "config disk errors quantities sampleview survey",
    "where": "config errors index layout model client._core client.errors",
    "sidecarwalk": "index model parts plan reconcile",
    "standing": "catalog generations index model reconcile rules",
    "recovery": "catalog dataset errors generations index layout leases live model parts plan reconcile "
    "rules saving shardtable sidecarwalk standing state client client._core client.protocol "
    "client.resources",
    "replies": "events layout model client.protocol",
    "saving": "catalog complaints errors events pause",
    "complaints": "errors pause",
    "ground": "disk errors layout",
    "meter": "complaints database disk errors events ground indexroom layout ledger state",
    "aside": "events model unittext",
    "exclusions": "catalog dataset errors events index model saving unittext client "
    "client.protocol",
    "probing": "complaints errors events acquire layout leases",
    "daemon": "aside catalog complaints config disk errors events exclusions executors index layout "
    "leases ledger listings meter model preflight probing reconcile "
    "recovery replies rules saving selection shards sidecarwalk sampler.messages state status "
    "waiting client.errors client.protocol",
    "trainer": "",
    "service": "executors config daemon disk errors firstlook layout notify ownership preflight server "
    "trainer",
    "repeats": "layout client._core",
    "verify": "layout repeats client client._core client.errors client.resources",
    "demo": "quantities client client.epoch client.errors",  # lives on what every trainer has
    # The command line
    "cli": "config demo disk errors extras firstlook layout model postmortem preflight proposal quantities "
    "rules sample sampler sampleview service survey verify where client client.errors client.protocol "
    "client.transport",
    "__main__": "cli",
}
ALLOWED = {part: frozenset(known.split()) for part, known in PARTS.items()}

PURE = {
    "acquire",
    "restraint",
    "rotation",
    "backlog",
    "parts",
    "model",
    "quantities",
    "events",
    "cycle",
    "plan",
    "dataset",
    "doubt",
    "excluded",
    "generations",
    "ledger",
    "ingest",
    "live",
    "deliveries",
    "marks",
    "contradictions",
    "pause",
    "progress",
    "rate",
    "room",
    "rules",
    "sampler.lanes",
    "sampler.patience",
    "second_chance",
    "shardtable",
    "sourcewalk",
    "state",
    "unitcount",
    "unittext",
    "waiting",
    "walk",
}
# Nothing here reads a file, a clock, the environment or a source of randomness.
WITHOUT_IO = {
    *(
        "__future__",
        "base64",
        "bisect",
        "collections",
        "dataclasses",
        "decimal",
        "enum",
        "fractions",
    ),
    *(
        "functools",
        "hashlib",
        "heapq",
        "itertools",
        "json",
        "math",
        "numpy",
        "operator",
        "re",
        "struct",
    ),
    *("sys", "typing", "typing_extensions", "zlib"),
}


def modules(base: Path, package: str) -> Iterator[tuple[str, ast.Module]]:
    for path in sorted((base / package).rglob("*.py")):
        parts = path.relative_to(base).with_suffix("").parts
        yield ".".join(parts).removesuffix(".__init__"), ast.parse(path.read_text(), str(path))


DAEMON = dict(modules(ROOT, "cachecd"))
CLIENT = dict(modules(ROOT / "client", "cachecd_client"))
MODULES = DAEMON.keys() | CLIENT.keys() | {"cachecd_client._core"}


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


def part_of(module: str) -> str:
    """The longest part's name that the module's begins with."""
    name = module.removeprefix("cachecd.")
    while name not in ALLOWED and "." in name:
        name = name.rpartition(".")[0]
    return name


def parts_known_to(tree: ast.AST) -> set[str]:
    known = {part_of(name) for name in imports(tree) if name.startswith("cachecd.")}
    client = {name for name in imports(tree) if name.partition(".")[0] == "cachecd_client"}
    return known | {name.replace("cachecd_client", "client", 1) for name in client}


def test_the_allowed_arrows_make_no_circle():
    ours = {part: {known for known in ALLOWED[part] if known in ALLOWED} for part in ALLOWED}
    assert len(list(TopologicalSorter(ours).static_order())) == len(ALLOWED)
    assert {
        k for known in ALLOWED.values() for k in known if not k.startswith("client")
    } <= ours.keys()


@pytest.mark.parametrize("module", sorted(DAEMON.keys() - {"cachecd"}))
def test_a_module_imports_only_what_its_part_may_know(module):
    part = part_of(module)
    assert part in ALLOWED, f"{module} belongs to no part: give it a line in PARTS"
    assert parts_known_to(DAEMON[module]) <= ALLOWED[part] | {part}


def test_no_part_is_in_the_table_that_is_not_in_the_tree():
    assert ALLOWED.keys() == {part_of(module) for module in DAEMON.keys() - {"cachecd"}}


@pytest.mark.parametrize("part", sorted(PURE))
def test_policy_and_values_do_no_input_or_output(part):
    tree = DAEMON[f"cachecd.{part}"]
    roots = {name.partition(".")[0] for name in imports(tree)}
    assert roots - {"cachecd", "cachecd_client"} <= WITHOUT_IO
    assert parts_known_to(tree) <= PURE | {"errors", "client._core"}
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert not {"open", "print", "input"} & {f.id for f in calls if isinstance(f, ast.Name)}


def test_only_the_daemon_joins_policy_and_world():
    worlds = {"catalog", "executors", "index", "leases", "listing", "shards", "server"}
    joining = {part for part, known in ALLOWED.items() if "state" in known and known & worlds}
    assert joining == {"daemon", "recovery"}  # recovery is the daemon's first minute
    knowing = {part for part, known in ALLOWED.items() if "executors" in known}
    # The service launches the samplers before there is a daemon.
    assert knowing == {"daemon", "executors.lister", "preflight", "service"}
    assert [part for part, known in ALLOWED.items() if "daemon" in known] == ["service"]


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
    assert {"cachecd_client.session", "cachecd_client.fileset"} <= set(loaded)
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
LONG: dict[str, str] = {
    "cachecd/catalog.py": "all SQL is in one place",
    "cachecd/daemon.py": "all wiring is in one place",
    "cachecd/dataset.py": "all that the policy knows of a dataset is in one place",
    "cachecd/live.py": "all sums over a dataset's shards are in one place",
    "tests/world.py": "disk, samplers and trainers share one clock and one account",
}


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
