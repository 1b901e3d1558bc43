"""S3 and everything that speaks its protocol: boto3 signs in and lists, obstore moves the bytes."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import botocore
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,
    HTTPClientError,
    NoCredentialsError,
)
from obstore.store import S3Store

from cachecd.errors import ConfigError, SourceError, SourceUnreachableError
from cachecd.model import ObjectInfo
from cachecd.sampler.stores.answers import refusal
from cachecd.sampler.stores.backend import PAGE, TransientError
from cachecd.sampler.stores.cloud import NO_RETRIES, CloudBackend, client_options
from cachecd.sampler.stores.credentials import LIFE, ChainCredentials, missing, new_session

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from cachecd.config import SourceConfig

# What obstore cannot name, since it takes a key for a path: empty, "." and ".." segments (so also a
# slash at the end, which it drops without a word) and control characters. boto3 reads those.
_NO_PATH = re.compile(r"(?:^|/)\.{0,2}(?:/|$)|[\x00-\x1f\x7f]")


class S3Backend:
    """The objects below an s3:// URL.

    Credentials, region and endpoint are found as the AWS tools find them (AWS_* variables, profiles,
    roles), where the source does not name them. Nothing is asked of the network before the first
    call.
    """

    def __init__(self, source: SourceConfig, connections: int, tries: int) -> None:
        bucket, _, prefix = source.url.partition("://")[2].partition("/")
        if not bucket:
            raise ConfigError(f"source {source.url}: expected s3://BUCKET/PREFIX/")
        self._source = source
        self._tries = tries
        self._bucket = bucket
        self._prefix = f"{prefix.rstrip('/')}/" if prefix.rstrip("/") else ""
        self._threads = ThreadPoolExecutor(connections, "read-s3")
        self.where = f"s3://{bucket}/{self._prefix}"
        self._client: Any = None
        self._client_made = 0.0
        client = self._signed_in()
        endpoint: str = client.meta.endpoint_url
        parts = urlsplit(endpoint)
        amazon = (parts.hostname or "").endswith((".amazonaws.com", ".amazonaws.com.cn"))
        config: dict[str, Any] = {
            "region": client.meta.region_name,
            "skip_signature": source.anonymous,
            # By host name as Amazon wishes, except that its certificates cover no dot in it.
            "virtual_hosted_style_request": amazon and "." not in bucket,
        }
        if not amazon:
            self.where += f" at {parts.scheme}://{parts.netloc.rpartition('@')[2]}"
            # Both, since obstore prefers the variable AWS_ENDPOINT_URL_S3 to the former.
            config |= {"endpoint": endpoint, "aws_endpoint_url_s3": endpoint}
        options = client_options(connections, allow_http=parts.scheme == "http")
        if bundle := os.environ.get("AWS_CA_BUNDLE"):
            options["root_certificate"] = Path(bundle).read_bytes()
        self._credentials = None if source.anonymous else ChainCredentials(self.where)
        make: Any = S3Store  # its types are for literal dictionaries
        store = make(
            bucket,
            prefix=self._prefix or None,
            config=config,
            client_options=options,
            retry_config=NO_RETRIES,
            credential_provider=self._credentials,
        )
        self._cloud = CloudBackend(store, self.where)

    def list(self) -> Iterator[list[ObjectInfo]]:
        try:
            pages = (
                self._signed_in()
                .get_paginator("list_objects_v2")
                .paginate(
                    Bucket=self._bucket, Prefix=self._prefix, PaginationConfig={"PageSize": PAGE}
                )
            )
            for page in pages:
                found = [
                    ObjectInfo(o["Key"][len(self._prefix) :], o["Size"], o.get("ETag", ""))
                    for o in page.get("Contents", ())
                    if o["Size"] or not o["Key"].endswith("/")
                ]
                if found:
                    yield found
        except (BotoCoreError, ClientError) as error:
            failure = self._explain(error)
            if isinstance(failure, SourceUnreachableError):
                raise failure from None  # botocore's own text may quote the signed request
            raise SourceUnreachableError(f"{self.where}: {failure}") from None

    async def read(self, key: str, start: int, stop: int | None, etag: str) -> Buffer:
        if _NO_PATH.search(key):
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, self._get, key, start, stop, etag)
        try:
            return await self._cloud.read(key, start, stop, etag)
        except SourceUnreachableError:
            if self._credentials is not None and self._credentials.failure is not None:
                raise self._credentials.failure from None
            raise

    def _get(self, key: str, start: int, stop: int | None, etag: str) -> bytes:
        wanted: dict[str, str] = {"IfMatch": etag} if etag else {}
        if start or stop is not None:
            wanted["Range"] = f"bytes={start}-{'' if stop is None else stop - 1}"
        try:
            answer = self._signed_in().get_object(
                Bucket=self._bucket, Key=self._prefix + key, **wanted
            )
            body: bytes = answer["Body"].read()
        except (BotoCoreError, ClientError) as error:
            raise self._explain(error) from None
        return body

    def _signed_in(self) -> Any:
        """boto3's client, made anew now and then, so that renewed credentials are noticed."""
        if self._client is None or time.monotonic() - self._client_made > LIFE:
            self._client, self._client_made = self._new_client(), time.monotonic()
        return self._client

    def _new_client(self) -> Any:
        source = self._source
        try:
            session = new_session()
            return session.client(
                "s3",
                endpoint_url=source.endpoint,
                region_name=source.region or session.region_name or "us-east-1",
                config=Config(
                    signature_version=botocore.UNSIGNED if source.anonymous else None,
                    retries={"mode": "standard", "total_max_attempts": self._tries},
                    connect_timeout=5,
                    read_timeout=30,
                ),
            )
        except (BotoCoreError, ValueError) as error:  # an unknown profile, a malformed endpoint
            raise SourceUnreachableError(f"{self.where}: {error}") from error

    def _explain(self, error: BotoCoreError | ClientError) -> SourceError:
        """What an exception of botocore's means."""
        match error:
            case ClientError():
                answer = error.response
                status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
                code = answer.get("Error", {}).get("Code", "")
                return refusal(status, "" if code.isdigit() else code, self.where)
            case NoCredentialsError():
                return SourceUnreachableError(f"{self.where}: {missing()}")
            case HTTPClientError() | ConnectionError():
                cause = str(error.kwargs.get("error", ""))
                reason = cause.rpartition(": ")[2].strip("')")
                if "NameResolution" in cause or "Failed to resolve" in cause:
                    return TransientError(f"cannot resolve the store's host name: {reason}")
                return TransientError(f"cannot connect to the store: {reason or error}")
            case _:
                return SourceUnreachableError(f"{self.where}: {error}")
