"""Opens the store of a source: the objects of its URL, listed and labelled by tables where it has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cachecd.stores.fetch import Store, open_plain_store
from cachecd.stores.patience import Retry

if TYPE_CHECKING:
    from cachecd.config import SourceConfig
    from cachecd.stores.backend import Backend


def open_store(source: SourceConfig, connections: int, retry: Retry | None = None) -> Store:
    """The store that `source` names, for up to `connections` requests at a time.

    Touches no network. s3:// signs in and lists by boto3 (environment, profiles, roles) and reads by
    obstore; gs://, az:// and http(s):// are obstore's; hf:// is HfFileSystem's;
    file:// and absolute paths are read directly; every other URL is fsspec's. ConfigError for a URL that
    nothing installed can read.
    """
    retry = retry or Retry()
    store = open_plain_store(source, connections, retry)
    if source.manifest is not None:
        from cachecd.sampler.manifest import ManifestBackend

        store = Store(ManifestBackend(store.backend, source, store), retry, connections)
    if source.match or source.skip or source.join:
        from cachecd.sampler.picked import PickedBackend

        def open_at(url: str) -> Backend:
            at = source.model_copy(update={"url": url})
            return open_plain_store(at, connections, retry).backend

        store = Store(PickedBackend(store.backend, source, open_at), retry, connections)
    if source.label is not None and source.label.manifest is not None:
        from cachecd.sampler.labels import LabelledBackend

        store = Store(LabelledBackend(store.backend, source), retry, connections)
    return store
