"""The Hugging Face Hub: the contract of a store, commits that stay what they are, and who is let in."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cachecd.errors import ConfigError, SourceUnreachableError, UnitError
from cachecd.stores import filesystem as backend
from cachecd.stores.backend import GoneError
from cachecd.stores.fetch import Store
from tests.contracts.store import (
    Filled,
    LiteralContract,
    Poured,
    StoreContract,
    get,
    listed,
    opened,
)
from tests.hub import Hub
from tests.scripted import scripted_server

URL = "hf://datasets/owner/name"
PREFIX = f"{URL}/some/prefix/"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(backend, "_PAUSE", 0.0)
    # Where a token of whoever runs the tests would lie.
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    with scripted_server() as server, scripted_server() as elsewhere:
        # The one by name, the other by address: other hosts to whoever has a token.
        server.endpoint = server.endpoint.replace("127.0.0.1", "localhost")
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        yield Hub(server, elsewhere)


def put(hub: Hub, files: dict[str, bytes]) -> str:
    return hub.commit({f"some/prefix/{key}": content for key, content in files.items()})


class TestHub(StoreContract, LiteralContract):
    refused = frozenset({"a//b/", "/lead/", "trail//", "up/../b/", "here/./b/", "proto://x/"})

    @pytest.fixture
    def poured(self, hub: Hub) -> Poured:
        def pour(objects: dict[str, bytes]) -> str:
            hub.commit(objects)
            return f"{URL}/"

        return pour

    @pytest.fixture
    def filled(self, hub: Hub) -> Filled:
        def fill(objects: dict[str, bytes]) -> Store:
            neighbours = {"some/prefix-too": b"a neighbour"}
            hub.commit(neighbours | {f"some/prefix/{k}": v for k, v in objects.items()})
            return opened(PREFIX)

        return fill


def test_what_was_listed_is_read_at_its_commit_however_the_branch_moves(hub: Hub):
    before = put(hub, {"a": b"before, long", "b": b"before"})
    store = opened(PREFIX)
    [[a, b]] = store.list()
    assert f"commit {before}" in store.where
    put(hub, {"a": b"after, longer", "b": b"after!"})
    assert get(store, "a", a.size, a.etag) == b"before, long"
    assert get(store, "b", b.size, b.etag, start=2, stop=5) == b"for"
    assert get(store, "b", b.size) == b"before", "nor is what has no ETag of another commit"
    assert hub.asked("/revision/main") == 1


def test_of_another_process_s_listing_only_what_is_as_it_was_listed_is_read(hub: Hub):
    """A process that has begun at an earlier commit, and one that begins at a later one."""
    put(hub, {"a": b"the first, long", "same": b"always, long"})
    early = opened(PREFIX)
    assert get(early, "a", 15) == b"the first, long"
    put(hub, {"a": b"second", "same": b"always, long", "new": b"new"})
    lister = opened(PREFIX)
    [[a, new, same]] = lister.list()
    assert get(early, "same", 12, same.etag) == b"always, long"
    assert hub.asked("/revision/main") == 2, "which the first commit had as it was listed"
    assert get(early, "a", 6, a.etag) == b"second"
    assert get(early, "new", 3, new.etag) == b"new"
    put(hub, {"a": b"third.", "same": b"always, long"})
    late = opened(PREFIX)
    assert get(late, "same", 12, same.etag) == b"always, long"
    with pytest.raises(UnitError, match=r"changed since it was listed \(412\)"):
        get(late, "a", 6, a.etag)
    with pytest.raises(GoneError):
        get(late, "new", 3, new.etag)


@pytest.mark.parametrize(
    ("revision", "branch"),
    [("@v1.0", "v1.0"), ("@refs/convert/parquet", "refs/convert/parquet"), ("@a%2Fb", "a/b")],
)
def test_a_revision_in_the_url_is_the_one_that_is_read(hub: Hub, revision: str, branch: str):
    hub.commit({"folder/object": b"of the branch"}, branch)
    put(hub, {"object": b"of main"})
    store = opened(f"{URL}{revision}/folder")
    assert listed(store) == {"object": 13}
    assert get(store, "object", 13) == b"of the branch"


@pytest.mark.parametrize("how", ["variable", "file"])
def test_the_token_is_found_and_told_to_nobody_but_the_hub(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: str
):
    hub.token = "hf_secretsecretsecret"
    put(hub, {"small": b"1", "large": b"large enough"})
    if how == "variable":
        monkeypatch.setenv("HF_TOKEN", hub.token)
    else:
        (tmp_path / "token").write_text(hub.token)
    store = opened(PREFIX)
    [[large, small]] = store.list()
    assert get(store, "large", 12, large.etag) == b"large enough"
    assert get(store, "small", 1, small.etag) == b"1"
    for ask in (listed, lambda store: get(store, "small", 1)):
        with pytest.raises(
            SourceUnreachableError, match=r"or it is private \(401, without a token"
        ):
            ask(opened(PREFIX, anonymous=True))


def test_who_is_not_let_in_is_told_what_to_do(hub: Hub, monkeypatch: pytest.MonkeyPatch):
    put(hub, {"object": b"1"})
    store = opened(PREFIX)
    [[found]] = store.list()

    def refuses(match: str, *asks: Callable[[Store], object]) -> None:
        for ask in asks:
            with pytest.raises(SourceUnreachableError, match=match) as caught:
                ask(opened(PREFIX))
            assert "hf_" not in str(caught.value)

    reads: tuple[Callable[[Store], object], ...] = (
        listed,
        lambda store: get(store, "object", 1, found.etag),
        lambda store: asyncio.run(store.find("object")),
    )
    hub.token = "hf_other"
    refuses(r"hf://datasets/owner/name.*private \(401, without a token: set HF_TOKEN\)", *reads)
    monkeypatch.setenv("HF_TOKEN", "hf_secretsecretsecret")
    refuses(r"it is private \(401, with the token from this machine\)", *reads)
    hub.gated = True
    refuses(r"requested on its page \(403, with the token", *reads)


def test_what_is_not_there_says_so(hub: Hub):
    put(hub, {"object": b"1"})
    assert listed(opened(f"{URL}/none/such")) == {}
    with pytest.raises(SourceUnreachableError, match=r"no revision 'v2' \(404, without"):
        listed(opened(f"{URL}@v2/some"))
    with pytest.raises(SourceUnreachableError, match="there is no such repository"):
        listed(opened("hf://datasets/owner/another/"))
    for url in ("hf://datasets/name", "hf://", "hf://datasets/owner/name@"):
        with pytest.raises(ValueError, match=r"expected hf://datasets/OWNER/NAME\[@REVISION\]"):
            opened(url)


def test_without_its_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ConfigError, match=r"huggingface_hub.*pip install 'cachecd\[hf\]'"):
        opened("hf://datasets/somebody/something/")
