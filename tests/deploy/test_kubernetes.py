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


DOCUMENTS = {document["kind"]: document for document in YAML(typ="safe").load_all(FILE)}
SPEC = DOCUMENTS["Pod"]["spec"]
(SIDECAR,), (TRAINER,) = SPEC["initContainers"], SPEC["containers"]


@pytest.fixture
def settings(tmp_path):
    path = tmp_path / "cachecd.yaml"
    path.write_text(DOCUMENTS["ConfigMap"]["data"]["cachecd.yaml"])
    return config.load(path, environ={})


def mounts(container):
    return {mount["name"]: mount for mount in container["volumeMounts"]}


def volumes(spec):
    return {volume["name"]: volume for volume in spec["volumes"]}


def environment(container):
    return {variable["name"]: variable["value"] for variable in container["env"]}


def test_the_limit_leaves_a_tenth_below_the_size_at_which_the_pod_is_evicted(settings):
    size = quantity(volumes(SPEC)["cache"]["emptyDir"]["sizeLimit"])
    assert settings.cache.limit * 1.1 <= size


def test_the_pod_is_placed_where_its_volumes_fit():
    sizes = [v["emptyDir"]["sizeLimit"] for v in SPEC["volumes"] if "emptyDir" in v]
    for figure in ("requests", "limits"):
        assert quantity(SIDECAR["resources"][figure]["ephemeral-storage"]) >= sum(
            map(quantity, sizes)
        )


def test_everybody_means_the_same_socket(settings):
    endpoints = {
        settings.server.endpoint,
        environment(SIDECAR)["CACHECD_ENDPOINT"],
        environment(TRAINER)["CACHECD_ENDPOINT"],
    }
    assert len(endpoints) == 1
    socket = Path(endpoints.pop().removeprefix("ipc://"))
    for container in (SIDECAR, TRAINER):
        # Not in the volume's root, which is root's and open to all, but in a directory of the daemon's.
        assert socket.parent.parent == Path(mounts(container)["run"]["mountPath"])


def test_the_cache_is_the_volume_and_the_trainer_can_only_read_it(settings):
    assert str(settings.cache.dir) == mounts(SIDECAR)["cache"]["mountPath"]
    assert mounts(SIDECAR)["cache"]["mountPath"] == mounts(TRAINER)["cache"]["mountPath"]
    assert not mounts(SIDECAR)["cache"].get("readOnly")
    assert mounts(TRAINER)["cache"]["readOnly"] is True


def test_the_configuration_that_is_mounted_is_the_one_that_is_run():
    directory = Path(mounts(SIDECAR)["config"]["mountPath"])
    assert SIDECAR["args"] == ["cachecd", "run", str(directory / "cachecd.yaml")]
    assert (
        volumes(SPEC)["config"]["configMap"]["name"] == DOCUMENTS["ConfigMap"]["metadata"]["name"]
    )


def test_both_containers_share_one_group_and_no_privileges():
    assert SPEC["securityContext"]["runAsNonRoot"] is True
    assert SPEC["securityContext"]["fsGroup"] == SPEC["securityContext"]["runAsGroup"]
    for container in (SIDECAR, TRAINER):
        confined = container["securityContext"]
        assert confined["allowPrivilegeEscalation"] is False
        assert confined["readOnlyRootFilesystem"] is True
        assert confined["capabilities"] == {"drop": ["ALL"]}


def test_credentials_come_from_the_service_account():
    account = DOCUMENTS["ServiceAccount"]["metadata"]
    assert SPEC["serviceAccountName"] == account["name"]
    assert "eks.amazonaws.com/role-arn" in account["annotations"]
    assert "SECRET" not in FILE.read_text()
