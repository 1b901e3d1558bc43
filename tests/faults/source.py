"""A source that is asked with credentials which nobody may see, and that is not waited for long."""

from __future__ import annotations

import os

import pytest

from cachecd.config import SourceConfig
from cachecd.stores.fetch import Store
from cachecd.stores.retry import Retry
from cachecd.units.unit_store import open_unit_store

ACCESS, SECRET = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
TOKEN, PASSWORD = "FwoGZXIvYXdzEBYaDHqa0AP1234567890", "proxy-password-9"
SECRETS = (SECRET, TOKEN, PASSWORD, "Signature=", "X-Amz-Security-Token")
QUICK = Retry(tries=3, within=5.0, first=0.001, longest=0.01, silence=10.0)
# Where silence is what is tested; a sound answer must not take as long, even on a busy machine.
HASTY = Retry(tries=2, within=0.3, first=0.001, longest=0.01, silence=2.0, slowest=1e7)


def sign_in(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Credentials that must not be seen anywhere, and nothing else of AWS or of proxies."""
    for name in list(os.environ):
        if name.startswith("AWS_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    for name, value in {
        "AWS_ACCESS_KEY_ID": ACCESS,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_SESSION_TOKEN": TOKEN,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_CONFIG_FILE": os.devnull,
    }.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


def opened(endpoint: str, connections: int = 8, retry: Retry = QUICK, **more: object) -> Store:
    source = {"url": "s3://b/", "format": "files", "endpoint": endpoint, **more}
    return open_unit_store(SourceConfig.model_validate(source), connections, retry)


def said(error: BaseException | None) -> str:
    """Everything that a log or a traceback would show of an error."""
    text = ""
    while error is not None:
        text += f"{type(error).__name__}: {error}\n"
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return text


def without_secrets(error: BaseException) -> str:
    text = said(error)
    assert [secret for secret in SECRETS if secret in text] == [], text
    return text
