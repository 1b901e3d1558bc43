"""What every kind of store must do. A test class inherits this and says how to fill its store."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cachecd.config import SourceConfig
from cachecd.errors import SourceUnreachableError, UnitError
from cachecd.stores.backend import GoneError
from cachecd.stores.fetch import Store
from cachecd.stores.retry import Retry
from cachecd.units.unit_store import open_unit_store

Filled = Callable[[dict[str, bytes]], Store]


def opened(url: str, **more: object) -> Store:
    """The store of a source, which gives up soon."""
    source = SourceConfig.model_validate({"url": url, "format": "files", **more})
    return open_unit_store(source, 8, Retry(tries=2, first=0.001))


def listed(store: Store) -> dict[str, int]:
    """Key -> size, in the order of the listing."""
    return {found.key: found.size for page in store.list() for found in page}


def get(store: Store, key: str, size: int, etag: str = "", **bounds: int) -> bytes:
    return bytes(asyncio.run(store.get(key, size, etag, **bounds)))


# Prefixes that mean themselves, each with a decoy: the folder that a parser reads that decodes, normalizes,
# expands or cuts.
DECOYS = {
    "a//b/": "a/b/",
    "/lead/": "lead/",
    "trail//": "trail/",
    "up/../b/": "b/",
    "here/./b/": "here/b/",
    "%20p/": " p/",
    "p%2Fq/": "p/q/",
    "p+q/": "p q/",
    "q?x=1/": "q/",
    "h#f/": "h/",
    "[ab]/": "a/",
    "{c,d}/": "c/",
    "s*r/": "sr/",
    "~/": "root/",
    "$HOME/": "home/",
    "back\\slash/": "back/slash/",
    "host:1@b;v=1&w/": "host/",
    "proto://x/": "x/",
    "chain::y/": "y/",
    " blank /": "blank/",
    "new\nline/": "newline/",
    "e\u0301/": "\u00e9/",
    "'\"<!--/": "'\"/",
}
# Empties the place and puts these objects there, by their whole names; returns the place's URL.
Poured = Callable[[dict[str, bytes]], str]


class LiteralContract:
    """A URL and a key mean themselves, or are refused. Inherit, and supply the fixture `poured`."""

    refused: frozenset[str] = frozenset()  # of DECOYS, what no key of the store can begin with
    absent: frozenset[str] = frozenset()  # of DECOYS, what the server of the test cannot hold

    @property
    def tried(self) -> set[str]:
        return DECOYS.keys() - self.refused - self.absent

    def objects(self, *folders: str) -> dict[str, bytes]:
        prefixes = self.tried | set(DECOYS.values())
        return {f"{at}{p}k/x": f"of {at}{p}".encode() for at in folders for p in prefixes}

    @pytest.mark.parametrize("prefix", DECOYS)
    def test_a_prefix_lists_exactly_what_is_below_it(self, poured: Poured, prefix: str):
        if prefix in self.absent:
            pytest.skip("the server of the test cannot hold it")
        objects = self.objects("")
        url = poured(objects) + prefix
        if prefix in self.refused:
            with pytest.raises(ValueError, match=r"expected .* without") as caught:
                opened(url)
            assert repr(url) in str(caught.value)
            return
        for text in {url, url if url.endswith("//") else url[:-1]}:
            store = opened(text)
            [[found]] = store.list()
            assert found.key == "k/x"
            assert get(store, found.key, found.size, found.etag) == objects[f"{prefix}k/x"]
            assert asyncio.run(store.find(found.key)) == found

    def test_every_key_is_listed_and_read_as_it_is(self, poured: Poured):
        objects = self.objects("some/folder/", "some/")
        store = opened(f"{poured(objects)}some/folder/")
        below = {f"{p}k/x": objects[f"some/folder/{p}k/x"] for p in {*self.tried, *DECOYS.values()}}
        found = {info.key: info for page in store.list() for info in page}
        assert found.keys() == below.keys()
        for key, body in below.items():
            assert get(store, key, len(body), found[key].etag) == body
            assert bytes(asyncio.run(store.tail(key, 2, found[key].etag))[1]) == body[-2:]

    def test_a_name_that_is_refused_never_gives_the_bytes_of_another(self, poured: Poured):
        """Also where it turns up below a URL that is allowed, and is as large as its decoy."""
        for prefix in self.refused if self.holds_all else ():
            objects = {f"{prefix}k/x": b"true", f"{DECOYS[prefix]}k/x": b"wrong"[:4]}
            store = opened(poured(objects))
            try:
                found = [info for page in store.list() for info in page]
            except SourceUnreachableError:
                continue
            for info in found:
                with contextlib.suppress(UnitError):
                    assert get(store, info.key, info.size, info.etag) == objects[info.key]

    holds_all = False  # whether the server of the test holds what the store refuses

    def test_patterns_and_tables_name_keys_as_they_are(self, poured: Poured, tmp_path: Path):
        objects = self.objects("f/")
        url = poured(objects)
        keys = {f"{prefix}k/x": objects[f"f/{prefix}k/x"] for prefix in self.tried}
        for key in keys:
            if "*" not in key:
                assert listed(opened(f"{url}f", match=[f"{key[:-1]}*"])) == {key: len(keys[key])}
        for name, below in ("url", f"{url}f/"), ("key", ""):
            rows = [json.dumps({name: below + key}) for key in keys if "://" not in key or below]
            (tmp_path / "t.jsonl").write_text("\n".join(rows))
            store = opened(f"{url}f", manifest=f"file://{tmp_path}/t.jsonl")
            sizes = listed(store)
            assert len(sizes) == len(rows)
            assert all(get(store, key, size) == keys[key] for key, size in sizes.items())


class StoreContract:
    """Inherit, and supply the fixture `filled`: puts objects below the source's URL, not by way of
    the store itself, and returns the store opened on them."""

    in_order = True  # whether the listing promises an order: that of the keys' bytes

    def test_lists_every_object_once_with_its_size(self, filled: Filled):
        objects = {
            "b/x": b"1",
            "a.b": b"22",
            "a/z": b"333",
            "a/b/c": b"666666",
            "B": b"4444",
            "é": b"5",
        }
        found = listed(filled(objects))
        assert found == {key: len(body) for key, body in objects.items()}
        if self.in_order:
            assert list(found) == sorted(objects, key=str.encode)

    def test_hidden_names_and_empty_objects_are_left_out_and_counted(self, filled: Filled):
        kept = ["_year=2020/a", "a_SUCCESS", "b/c", "x.zarr/.zarray"]
        hidden = [".a", "_SUCCESS", "b/_temporary/0/c", "b/.c", "d/_started_1", "_x_$folder$"]
        store = filled({**dict.fromkeys([*kept, *hidden], b"x"), "b/empty": b"", "e": b""})
        assert listed(store) == dict.fromkeys(kept, 1)
        [(hidden_count, _), (empty_count, examples)] = sorted(
            store.backend.left_out.kinds.values(), reverse=True
        )
        assert (hidden_count, empty_count, examples) == (len(hidden), 2, ["b/empty", "e"])

    def test_key_that_differs_by_its_normalization_is_told_so(self, filled: Filled):
        store = filled({"e\u0301": b"x", "other": b"y"})
        for how in (store.find("\u00e9"), store.get("\u00e9", 1)):
            with pytest.raises(UnitError, match=r"there is no '\\xe9', but 'e\\u0301', which only"):
                asyncio.run(how)

    def test_a_listing_longer_than_a_page_is_complete(self, filled: Filled):
        objects = {f"{number:04d}": b"x" for number in range(1001)}
        pages = list(filled(objects).list())
        assert [found.key for page in pages for found in page] == sorted(objects)
        assert max(map(len, pages)) <= 1000

    def test_a_listing_goes_on_after_a_key(self, filled: Filled):
        keys = ["a.b", "a/x", "a/y/z", "a/z", "b/x", *(f"c{number:04d}" for number in range(90))]
        store = filled(dict.fromkeys(keys, b"x"))
        for at in (0, 1, 2, 3, 4, 54, 94) if self.in_order else ():
            after = [found.key for page in store.list(keys[at]) for found in page]
            assert after == keys[at + 1 :]

    @pytest.mark.parametrize("body", [b"", b"x", bytes(range(256)) * 5000])
    def test_an_object_is_read_byte_for_byte(self, filled: Filled, body: bytes):
        store = filled({"folder/object": body})
        found = asyncio.run(store.find("folder/object"))
        assert get(store, found.key, found.size, found.etag) == body

    @pytest.mark.parametrize(("start", "stop"), [(0, 1), (3, 7), (9, 10)])
    def test_a_part_of_an_object_is_read(self, filled: Filled, start: int, stop: int):
        store = filled({"object": b"0123456789"})
        [[found]] = store.list()
        assert (
            get(store, "object", 10, found.etag, start=start, stop=stop)
            == b"0123456789"[start:stop]
        )

    @pytest.mark.parametrize(("length", "end"), [(1, b"9"), (99, b"0123456789")])
    def test_an_objects_end_is_read_with_its_size(self, filled: Filled, length: int, end: bytes):
        store = filled({"object": b"0123456789"})
        for page in store.list():
            for found in page:
                size, body = asyncio.run(store.tail(found.key, length, found.etag))
                assert (size, bytes(body)) == (10, end)

    @pytest.mark.parametrize(
        "key", ["a b", "a+b", "a%20b", "ü/ß", "q?x=1&y#z", "'\"<[{*~", "a:@;,&=$!"]
    )
    def test_awkward_keys_are_read(self, filled: Filled, key: str):
        store = filled({key: b"content"})
        [[found]] = store.list()
        assert found.key == key
        assert get(store, key, 7, found.etag) == b"content"
        assert asyncio.run(store.find(key)) == found

    def test_an_object_that_is_not_there_is_not_found(self, filled: Filled):
        store = filled({"folder/other": b"1"})
        for key in ("folder", "folder/others"):
            with pytest.raises(GoneError):
                asyncio.run(store.find(key))

    def test_reads_run_concurrently(self, filled: Filled):
        objects = {f"{number}": bytes([number]) * 1000 for number in range(40)}
        store = filled(objects)

        async def all_of_them() -> list[bytes]:
            return [bytes(b) for b in await asyncio.gather(*(store.get(k, 1000) for k in objects))]

        assert asyncio.run(all_of_them()) == list(objects.values())

    def test_a_missing_object_is_the_units_fault(self, filled: Filled):
        store = filled({"there": b"1"})
        with pytest.raises(UnitError, match=r"deleted|No such file"):
            get(store, "not there", 1)

    @pytest.mark.parametrize("size", [3, 5])
    def test_an_object_of_another_size_than_listed_is_the_units_fault(
        self, filled: Filled, size: int
    ):
        store = filled({"object": b"1234"})
        with pytest.raises(UnitError, match=f"4 bytes, {size} were listed|more than 3 bytes, 3"):
            get(store, "object", size)

    def test_a_piece_beyond_the_end_is_the_units_fault(self, filled: Filled):
        store = filled({"object": b"1234"})
        with pytest.raises(
            UnitError, match=r"bytes, 100 were listed|shorter than the listing says"
        ):
            get(store, "object", 100, start=50, stop=60)
