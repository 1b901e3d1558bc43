"""AWS credentials for obstore, found by boto3's chain."""

from __future__ import annotations

import os
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import boto3
import botocore.session
from botocore.credentials import RefreshableCredentials
from botocore.exceptions import BotoCoreError
from botocore.loaders import create_loader

from cachecd.errors import SourceError, SourceUnreachableError
from cachecd.stores.answers import redacted
from cachecd.stores.backend import TransientError

if TYPE_CHECKING:
    from botocore.credentials import Credentials
    from obstore.store import S3Credential

LIFE = 60.0  # seconds that obstore may use keys; then even fixed keys are looked up again

# Descriptions of AWS services, parsed only once: parsing takes 60 of the 70 ms to make a client.
_DESCRIPTIONS = create_loader()


def new_session() -> boto3.Session:
    """Returns a session with the current environment and profiles. BotoCoreError."""
    core = botocore.session.Session()
    core.register_component("data_loader", _DESCRIPTIONS)
    return boto3.Session(botocore_session=core)


class ChainCredentials:
    """Provides credentials to obstore; called in obstore's threads.

    Roles, SSO and containers issue keys that expire, and keys of a `credential_process` may expire after
    seconds. Keys are used for at most LIFE, and for at most half of their remaining life. Fixed keys are
    looked up again after LIFE, so that a renewed profile is noticed. If renewing fails, the current keys
    are used until they expire.

    `failure`: the error of the latest call, which obstore does not report; None if the call succeeded.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._lock = threading.Lock()
        self._credentials: Credentials | None = None
        self._looked_up_at = 0.0
        self._answer: S3Credential | None = None
        self._expires: datetime | None = None  # when the answer's keys expire; None: never
        self.failure: SourceError | None = None

    def __call__(self) -> S3Credential:
        with self._lock:
            now = datetime.now(UTC)
            if self._answer is None or self._answer["expires_at"] <= now:  # type: ignore[operator]
                try:
                    self._answer = self._renewed(now)
                except SourceError as error:
                    if self._answer is None or self._expires is None or self._expires <= now:
                        self._answer, self.failure = None, error
                        raise
                    self._answer["expires_at"] = now + (self._expires - now) / 2
            self.failure = None
            return self._answer.copy()

    def _renewed(self, now: datetime) -> S3Credential:
        try:
            current = self._current()
            # botocore renews keys that expire within ten minutes. So keys with a shorter life are fetched
            # by each of these calls.
            frozen = current.get_frozen_credentials()
        # A credential_process may print anything, and botocore does not catch the errors of its parser.
        except (BotoCoreError, ValueError, KeyError, OSError) as error:
            self._credentials = None
            why = f"{type(error).__name__}: {redacted(str(error))}"
            raise TransientError(f"no credentials: {why}") from None
        self._expires = getattr(current, "_expiry_time", None)
        until = now + timedelta(seconds=LIFE)
        if self._expires is not None:
            until = min(until, now + max(self._expires - now, timedelta()) / 2)
        return {
            "access_key_id": frozen.access_key or "",
            "secret_access_key": frozen.secret_key or "",
            "token": frozen.token,
            "expires_at": until,
        }

    def _current(self) -> Credentials:
        fixed = not isinstance(self._credentials, RefreshableCredentials)
        if self._credentials is None or (fixed and time.monotonic() - self._looked_up_at > LIFE):
            self._credentials = new_session().get_credentials()
            self._looked_up_at = time.monotonic()
        if self._credentials is None:
            raise SourceUnreachableError(f"{self._where}: {missing()}")
        return self._credentials


def missing() -> str:
    """Returns the message for missing credentials: the searched places, and what to do."""
    profile = os.environ.get("AWS_PROFILE", "default")
    keys = os.environ.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials")
    config = os.environ.get("AWS_CONFIG_FILE", "~/.aws/config")
    return (
        "no credentials found: looked in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, in profile "
        f"{profile!r} of {keys} and {config}, and requested the container's and the machine's role; "
        "set one of them, or `anonymous: true` for a public bucket"
    )
