"""The way to the store is broken: certificates, proxies; and nothing secret is said of any of it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from cachecd.errors import SourceError, SourceUnreachableError
from cachecd.stores.answers import redacted
from tests import scripted
from tests.contracts.store import get
from tests.faults.source import ACCESS, PASSWORD, SECRET, TOKEN, opened, without_secrets
from tests.scripted import Answer, scripted_server


@pytest.fixture(scope="module")
def certificate() -> Iterator[str]:
    """Key and certificate that nobody has signed but itself."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "nobody")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    with tempfile.NamedTemporaryFile(suffix=".pem") as file:
        private = serialization.PrivateFormat.TraditionalOpenSSL
        file.write(
            key.private_bytes(serialization.Encoding.PEM, private, serialization.NoEncryption())
        )
        file.write(made.public_bytes(serialization.Encoding.PEM))
        file.flush()
        yield file.name


@pytest.mark.parametrize("how", ["list", "get", "get odd//key"])
def test_a_certificate_that_is_not_trusted_says_what_to_set(
    environ: pytest.MonkeyPatch, certificate: str, how: str
):
    with scripted_server(certificate) as server:
        store = opened(server.endpoint)
        with pytest.raises(SourceUnreachableError, match=r"not trusted.*AWS_CA_BUNDLE") as caught:
            list(store.list()) if how == "list" else get(store, how.removeprefix("get "), 5)
        without_secrets(caught.value)


@pytest.mark.parametrize("key", ["key", "odd//key"])
@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (scripted.refusal(407, ""), "the proxy requires a user and a password"),
        (scripted.refusal(502, ""), "a proxy cannot reach the store"),
        (None, "cannot connect to the store|the connection broke"),
    ],
    ids=["407", "502", "refused"],
)
def test_a_proxy_that_fails_is_named_without_its_password(
    environ: pytest.MonkeyPatch, answer: Answer | None, reason: str, key: str
):
    with scripted_server() as proxy:
        address = proxy.endpoint.removeprefix("http://") if answer else "127.0.0.1:1"
        for name in ("HTTP_PROXY", "http_proxy"):
            environ.setenv(name, f"http://user:{PASSWORD}@{address}")
        if answer:
            proxy.script[f"http://store.invalid:9/b/{key}"] = [answer]
        with pytest.raises(SourceError, match=reason) as caught:
            get(opened("http://store.invalid:9"), key, 5)
        without_secrets(caught.value)


def test_keys_of_urls_and_of_others_words_are_never_quoted():
    for text in (
        f"GET https://acct.blob.core.windows.net/c/k?sv=2024&sig={SECRET} failed",
        f"ftp://user:{PASSWORD}@host/x: refused",
        f"login failed: token={TOKEN}",
        f'{{"SecretAccessKey": "{SECRET}"}}',
        f"process said {SECRET}",
        f"AccessKey: {ACCESS}",
    ):
        told = redacted(text)
        assert not any(secret in told for secret in (SECRET, TOKEN, PASSWORD, ACCESS)), told
    assert redacted("Parameter validation failed:\nInvalid name\nmore") == (
        "Parameter validation failed: Invalid name"
    )
    assert redacted("[Errno 2] No such file: '/data/set/part-00017.tar'\nmore") == (
        "[Errno 2] No such file: '/data/set/part-00017.tar'"
    )
