"""S3 and compatible services: boto3 signs in and lists, and obstore reads."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import botocore
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,
    HTTPClientError,
    NoCredentialsError,
    ReadTimeoutError,
    SSLError,
)
from obstore.store import S3Store

from cachecd.config.address import NO_PATH
from cachecd.errors import SourceError, SourceUnreachableError
from cachecd.model import ObjectInfo
from cachecd.stores import listobjects
from cachecd.stores.answers import redacted, refusal, retry_after
from cachecd.stores.backend import PAGE, TransientError, resized
from cachecd.stores.cloud import NO_RETRIES, CloudBackend, client_options, untrusted
from cachecd.stores.credentials import LIFE, ChainCredentials, missing, new_session
from cachecd.stores.key_ranges import WINDOW, Ask, KeyPage

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from cachecd.config import SourceConfig

_Result = TypeVar("_Result")

_MOST_EMPTY = 1000  # replies for one page; after a deletion of all objects, some stores send a few


class S3Backend:
    """The objects below an s3:// URL.

    Credentials, region and endpoint that the source does not set are found as the AWS tools find them
    (AWS_* variables, profiles, roles). The first call is the first use of the network.
    """

    def __init__(
        self,
        source: SourceConfig,
        connections: int,
        tries: int = 7,
        silence: float = 30.0,
    ) -> None:
        self._source = source
        self._tries = tries  # of a listing; reads are counted by cachecd.stores.fetch
        self._silence = silence
        self._throttled = False
        self._bucket = bucket = source.address.place
        self._prefix = source.address.prefix
        # boto3 reads access points (ARNs), and objects that obstore cannot name.
        self._by_obstore = ":" not in bucket and not re.search(NO_PATH, self._prefix + "x")
        self._threads = ThreadPoolExecutor(connections, "read-s3")
        self.where = f"s3://{bucket}/{self._prefix}"
        self._clients: dict[int, tuple[Any, float]] = {}  # by their number of tries
        self._signing_in = threading.Lock()
        client = self._signed_in(tries)
        endpoint: str = client.meta.endpoint_url
        parts = urlsplit(endpoint)
        amazon = (parts.hostname or "").endswith((".amazonaws.com", ".amazonaws.com.cn"))
        config: dict[str, Any] = {
            "region": client.meta.region_name,
            "skip_signature": source.anonymous,
            "request_payer": source.requester_pays,
            # Amazon prefers the bucket in the host name, but its certificates cover no dot in a bucket.
            "virtual_hosted_style_request": amazon and "." not in bucket,
        }
        if not amazon:
            self.where += f" at {parts.scheme}://{parts.netloc.rpartition('@')[2]}"
            # Both, because obstore prefers the variable AWS_ENDPOINT_URL_S3 to `endpoint`.
            config |= {"endpoint": endpoint, "aws_endpoint_url_s3": endpoint}
        options = client_options(connections, silence, allow_http=parts.scheme == "http")
        self._credentials = None if source.anonymous else ChainCredentials(self.where)
        make: Any = S3Store  # its types are for literal dictionaries
        store = make(
            bucket,
            prefix=self._prefix if self._by_obstore else None,
            config=config,
            client_options=options,
            retry_config=NO_RETRIES,
            credential_provider=self._credentials,
        )
        self._cloud = CloudBackend(store, self.where)

    def list(self, start_after: str = "") -> Iterator[list[ObjectInfo]]:
        try:
            for answer in self._answers(self._tries, start_after, PAGE):
                # A page may be empty without being the last.
                yield _entries(answer, self._prefix)
        except SourceUnreachableError:
            raise
        except SourceError as error:
            raise SourceUnreachableError(f"{self.where}: {error}") from None

    def page(self, ask: Ask) -> KeyPage:
        """Returns a part of the listing, in one attempt. Blocks."""
        objects: list[ObjectInfo] = []
        for answer in islice(self._answers(1, ask.after, ask.most), _MOST_EMPTY):
            objects += _entries(answer, self._prefix)
            more = answer.get("IsTruncated", False)
            if not more or len(objects) >= ask.most:
                return KeyPage(objects[: ask.most], more or len(objects) > ask.most)
        raise TransientError(f"the store has listed {_MOST_EMPTY} pages that were almost empty")

    def _answers(self, tries: int, after: str, most: int) -> Iterator[Any]:
        """Yields the store's replies, with at most `most` keys each, from the key behind `after` on."""
        client = self._signed_in(tries)
        where = {"StartAfter": self._prefix + after} if after else {}
        more = True
        while more:
            try:
                answer = client.list_objects_v2(
                    Bucket=self._bucket, Prefix=self._prefix, MaxKeys=most, **where
                )
            except (BotoCoreError, ClientError) as error:
                # Without botocore's own text, which may quote the signed request.
                raise self._explain(error) from None
            yield answer
            where = {"ContinuationToken": answer.get("NextContinuationToken", "")}
            more = answer.get("IsTruncated", False)

    def glimpse(self) -> Sequence[ObjectInfo]:
        return self.page(Ask("", 10)).objects

    async def read(self, key: str, start: int, stop: int, size: int | None, etag: str) -> Buffer:
        wanted = "" if (start, stop) == (0, size) else f"{start}-{stop - 1}"
        return await self._by_either(
            key,
            lambda: self._get(key, wanted, stop - start, size, etag)[1],
            lambda: self._cloud.read(key, start, stop, size, etag),
        )

    async def tail(self, key: str, length: int, etag: str) -> tuple[int, Buffer]:
        return await self._by_either(
            key,
            lambda: self._get(key, f"-{length}", length, None, etag),
            lambda: self._cloud.tail(key, length, etag),
        )

    async def _by_either(
        self, key: str, boto3: Callable[[], _Result], cloud: Callable[[], Awaitable[_Result]]
    ) -> _Result:
        # obstore does not report Retry-After. While the store throttles, boto3 reads instead.
        if self._throttled or not self._by_obstore or re.search(NO_PATH, key):
            loop = asyncio.get_running_loop()
            client = await loop.run_in_executor(self._threads, boto3)
            self._throttled = False
            return client
        try:
            return await cloud()
        except TransientError as error:
            self._throttled = error.throttled
            raise
        except SourceUnreachableError:
            if self._credentials is not None and self._credentials.failure is not None:
                raise self._credentials.failure from None
            raise

    def _get(
        self, key: str, wanted: str, length: int, size: int | None, etag: str
    ) -> tuple[int, Buffer]:
        """Returns the object's size, and the wanted range: all bytes without a range."""
        options = {"IfMatch": etag} if etag else {}
        if wanted:
            options["Range"] = f"bytes={wanted}"
        try:
            answer = self._signed_in(1).get_object(
                Bucket=self._bucket, Key=self._prefix + key, **options
            )
            with answer["Body"] as stream:
                total = answer.get("ContentRange", "").rpartition("/")[2]
                actual = int(total) if total.isdigit() else answer.get("ContentLength")
                if size is not None and actual is not None and actual != size:
                    raise resized(actual, size)
                body: bytes = stream.read(length + 1)
        except (BotoCoreError, ClientError) as error:
            raise self._explain(error) from None
        return actual or 0, body

    async def find(self, key: str) -> ObjectInfo:
        return await self._by_either(key, lambda: self._head(key), lambda: self._cloud.find(key))

    def _head(self, key: str) -> ObjectInfo:
        try:
            headers = self._signed_in(1).head_object(Bucket=self._bucket, Key=self._prefix + key)
        except (BotoCoreError, ClientError) as error:
            raise self._explain(error) from None
        return ObjectInfo(key, headers["ContentLength"], headers.get("ETag", ""))

    def _signed_in(self, tries: int) -> Any:
        """Returns boto3's client. A client is replaced after LIFE, so that renewed credentials are
        noticed."""
        with self._signing_in:  # slow, and several threads may call it
            client, made = self._clients.get(tries, (None, 0.0))
            if client is None or time.monotonic() - made > LIFE:
                client = self._new_client(tries)
                self._clients[tries] = client, time.monotonic()
            return client

    def _new_client(self, tries: int) -> Any:
        source = self._source
        try:
            session = new_session()
            client = session.client(
                "s3",
                endpoint_url=source.endpoint,
                region_name=source.region or session.region_name or "us-east-1",
                config=Config(
                    signature_version=botocore.UNSIGNED if source.anonymous else None,
                    retries={"mode": "standard", "total_max_attempts": tries},
                    max_pool_connections=WINDOW,
                    connect_timeout=min(5.0, self._silence),
                    read_timeout=self._silence,
                ),
            )
            client.meta.events.register(listobjects.EVENT, listobjects.take_objects)
            if source.requester_pays:  # for every request
                client.meta.events.register("before-call.s3", _pay)
            return client
        # An unknown profile, a malformed endpoint, or a missing helper for credentials.
        except (BotoCoreError, ValueError, OSError) as error:
            raise SourceUnreachableError(f"{self.where}: {redacted(str(error))}") from error

    def _explain(self, error: BotoCoreError | ClientError) -> SourceError:
        """Returns the error for an exception of botocore."""
        match error:
            case ClientError():
                answer = error.response
                about = answer.get("ResponseMetadata", {})
                status, headers = about.get("HTTPStatusCode", 0), about.get("HTTPHeaders", {})
                code = answer.get("Error", {}).get("Code") or ""
                code = "" if code.isdigit() else code
                return refusal(status, code, self.where, retry_after(headers))
            case NoCredentialsError():
                return SourceUnreachableError(f"{self.where}: {missing()}")
            case ReadTimeoutError():
                return TransientError("the store sends no data")
            case SSLError() if "CERTIFICATE_VERIFY_FAILED" in str(error):
                return untrusted(self.where)
            case HTTPClientError() | ConnectionError():
                cause = str(error.kwargs.get("error", ""))
                reason = cause.rpartition(": ")[2].strip("')")
                if "NameResolution" in cause or "Failed to resolve" in cause:
                    hint = "If the bucket is not Amazon's, set its `endpoint` (`cachecd init --endpoint`)"
                    hint = "" if " at " in self.where else f". {hint}"
                    return TransientError(
                        f"cannot resolve the store's host name: {redacted(reason)}){hint}"
                    )
                return TransientError(
                    f"cannot connect to the store: {redacted(reason or str(error))}"
                )
            case _:
                return SourceUnreachableError(f"{self.where}: {redacted(str(error))}")


def _pay(params: dict[str, Any], **_: Any) -> None:
    params["headers"]["x-amz-request-payer"] = "requester"  # signed afterwards


def _entries(page: Any, prefix: str) -> list[ObjectInfo]:
    """Returns the objects of one reply of ListObjectsV2 below the prefix, without the marker of the prefix
    itself."""
    return [
        ObjectInfo(o["Key"][len(prefix) :], o["Size"], o.get("ETag", ""))
        for o in page.get("Contents", ())
        if o["Size"] or o["Key"] != prefix
    ]
