import json

import cachecd_client
from cachecd_client import errors
from tests.core.processes import run_program


def loaded_by(program: str) -> set[str]:
    report = "import json, sys; print(json.dumps(sorted({m.split('.')[0] for m in sys.modules})))"
    return set(json.loads(run_program(f"{program}\n{report}").stdout.splitlines()[-1]))


def test_importing_the_package_loads_no_library_and_no_framework_with_all_its_names():
    assert not loaded_by("import cachecd_client") & {"numpy", "zmq"}
    frameworks = {"jax", "tensorflow", "torch"}
    assert not loaded_by("from cachecd_client import *") & frameworks


def test_every_error_is_public():
    of_the_tree = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.CachecdError)
    }
    assert of_the_tree <= set(cachecd_client.__all__)


def test_every_public_name_is_there_and_no_other_is_offered():
    for name in cachecd_client.__all__:
        assert getattr(cachecd_client, name).__name__ == name
        assert name in dir(cachecd_client)
    assert not hasattr(cachecd_client, "Nothing")
