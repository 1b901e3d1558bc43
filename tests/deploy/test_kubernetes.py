"""The sidecar example: the facts in which its parts must agree."""

from __future__ import annotations

from pathlib import Path

import pytest
from ruamel.yaml import YAML

from cachecd import config

FILE = Path(__file__).parents[2] / "deploy" / "kubernetes" / "sidecar.yaml"
UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def quantity(text: str) -> int:
    return int(text[:-2]) * UNITS[text[-2:]]


@pytest.fixture(scope="module")
def documents():
    """By kind."""
    return {document["kind"]: document for document in YAML(typ="safe").load_all(FILE)}


@pytest.fixture(scope="module")
def spec(documents):
    return documents["Pod"]["spec"]


@pytest.fixture(scope="module")
def sidecar(spec):
    (container,) = spec["initContainers"]
    return container


@pytest.fixture(scope="module")
def trainer(spec):
    (container,) = spec["containers"]
    return container


@pytest.fixture
def settings(documents, tmp_path):
    """The ConfigMap's configuration, as the daemon would load it."""
    path = tmp_path / "cachecd.yaml"
    path.write_text(documents["ConfigMap"]["data"]["cachecd.yaml"])
    return config.load(path, environ={})


def mounts(container):
    return {mount["name"]: mount for mount in container["volumeMounts"]}


def volumes(spec):
    return {volume["name"]: volume for volume in spec["volumes"]}


def environment(container):
    return {variable["name"]: variable["value"] for variable in container["env"]}


def test_the_daemon_is_a_native_sidecar_that_the_trainer_waits_for(sidecar):
    assert sidecar["restartPolicy"] == "Always"
    assert sidecar["startupProbe"]["exec"]["command"] == ["cachecd", "status"]


def test_the_limit_leaves_a_tenth_below_the_size_at_which_the_pod_is_evicted(spec, settings):
    size = quantity(volumes(spec)["cache"]["emptyDir"]["sizeLimit"])
    assert settings.cache.limit * 1.1 <= size


def test_the_pod_is_placed_where_its_volumes_fit(spec, sidecar):
    sizes = [v["emptyDir"]["sizeLimit"] for v in spec["volumes"] if "emptyDir" in v]
    for figure in ("requests", "limits"):
        assert quantity(sidecar["resources"][figure]["ephemeral-storage"]) >= sum(
            map(quantity, sizes)
        )


def test_the_window_is_half_of_the_memory_of_the_trainer_whose_it_is(trainer, settings):
    assert settings.cache.window == quantity(trainer["resources"]["limits"]["memory"]) // 2


def test_half_of_the_daemons_memory_is_enough_for_its_workers(sidecar, settings):
    limit = quantity(sidecar["resources"]["limits"]["memory"])
    assert settings.sampler.memory is None
    assert limit // 2 // settings.sampler.workers >= UNITS["Gi"]


def test_everybody_means_the_same_socket(sidecar, trainer, settings):
    endpoints = {
        settings.server.endpoint,
        environment(sidecar)["CACHECD_ENDPOINT"],
        environment(trainer)["CACHECD_ENDPOINT"],
    }
    assert len(endpoints) == 1
    socket = Path(endpoints.pop().removeprefix("ipc://"))
    for container in (sidecar, trainer):
        # Not in the volume's root, which is root's and open to all, but in a directory of the daemon's.
        assert socket.parent.parent == Path(mounts(container)["run"]["mountPath"])


def test_the_cache_is_the_volume_and_the_trainer_can_only_read_it(sidecar, trainer, settings):
    assert str(settings.cache.dir) == mounts(sidecar)["cache"]["mountPath"]
    assert mounts(sidecar)["cache"]["mountPath"] == mounts(trainer)["cache"]["mountPath"]
    assert not mounts(sidecar)["cache"].get("readOnly")
    assert mounts(trainer)["cache"]["readOnly"] is True


def test_the_configuration_that_is_mounted_is_the_one_that_is_run(documents, spec, sidecar):
    directory = Path(mounts(sidecar)["config"]["mountPath"])
    assert sidecar["args"] == ["cachecd", "run", str(directory / "cachecd.yaml")]
    assert (
        volumes(spec)["config"]["configMap"]["name"] == documents["ConfigMap"]["metadata"]["name"]
    )


def test_every_mount_has_its_volume(spec, sidecar, trainer):
    assert mounts(sidecar).keys() == volumes(spec).keys()
    assert mounts(trainer).keys() <= volumes(spec).keys()


def test_both_containers_share_one_group_and_no_privileges(spec, sidecar, trainer):
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["fsGroup"] == spec["securityContext"]["runAsGroup"]
    for container in (sidecar, trainer):
        confined = container["securityContext"]
        assert confined["allowPrivilegeEscalation"] is False
        assert confined["readOnlyRootFilesystem"] is True
        assert confined["capabilities"] == {"drop": ["ALL"]}


def test_credentials_come_from_the_service_account(documents, spec):
    account = documents["ServiceAccount"]["metadata"]
    assert spec["serviceAccountName"] == account["name"]
    assert "eks.amazonaws.com/role-arn" in account["annotations"]
    assert "SECRET" not in FILE.read_text()


def test_a_stop_leaves_time_to_drain(spec):
    assert spec["terminationGracePeriodSeconds"] > 10
