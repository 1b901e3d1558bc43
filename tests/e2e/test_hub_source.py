"""A data set on the Hugging Face Hub: a commit that comes while a daemon runs is taken up file by file."""

from __future__ import annotations

from tests.e2e.daemons import wait_until
from tests.e2e.reading import rows
from tests.hub import Hub
from tests.scripted import scripted_server


def test_a_later_commit_adds_its_files_and_what_was_listed_stays_as_it_was(daemon):
    files = {f"train/{number:03d}": b"%d " % number * 500 for number in range(40)}
    with scripted_server() as server, scripted_server() as elsewhere:
        hub = Hub(server, elsewhere)
        hub.token = "hf_secretsecretsecret"
        first = hub.commit(files)
        source = {"url": "hf://datasets/owner/name/train/", "format": "files"}
        environ = {"HF_ENDPOINT": server.endpoint, "HF_TOKEN": hub.token}
        dataset = {"source": source, "relist": "500ms"}
        served = daemon({"train": dataset}, environ=environ, sampler={"workers": 1})
        served.start()

        def cached(count: int) -> bool:
            status = served.train
            return status["units"] == count and status["whole"]

        wait_until(lambda: cached(40), what="the first commit is cached")
        second = hub.commit(files | {"train/new": b"of the second"})
        wait_until(lambda: cached(41), what="the second commit's file is cached")
        with served.connect() as cache, cache.acquire("train", timeout=30) as epoch:
            found = {bytes(k).decode(): bytes(p) for k, p in rows(epoch, "key", "payload")}
        assert {f"train/{key}": content for key, content in found.items()} == hub.commits[second]
        said = served.said()
        assert all(f"is read at commit {commit}" in said for commit in (first, second))
        assert hub.token not in said
