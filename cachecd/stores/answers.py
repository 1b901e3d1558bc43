"""Turns a store's error reply into an error: of the object, of the store, or one to retry.

Uses only the HTTP status and the error code in the body. No message quotes the rest of the body, which
may have parts of the signed request.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from cachecd.errors import SourceError, SourceUnreachableError, UnitError
from cachecd.stores.backend import GoneError, TransientError

_NO_BUCKET = {"NoSuchBucket", "InvalidBucketName", "ContainerNotFound", "NoSuchContainer"}
_ELSEWHERE = {
    "PermanentRedirect",
    "AuthorizationHeaderMalformed",
    "IllegalLocationConstraintException",
}
_WRONG_KEYS = {
    "InvalidAccessKeyId": "the store does not know the access key",
    "SignatureDoesNotMatch": "the secret key does not belong to the access key",
    "RequestTimeTooSkewed": "this machine's clock is wrong by more than 15 minutes",
    "AccountProblem": "there is a problem with the account",
    "AllAccessDisabled": "all access to the bucket has been disabled",
}
_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"}
_THROTTLED = {"SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded", "ServerBusy"}
_ARCHIVED = {"InvalidObjectState", "BlobArchived", "BlobBeingRehydrated"}

_USERINFO = re.compile(r"(?<=://)[^/@\s]*@")
_QUERY = re.compile(r"(?<=\w\w)\?[^\s\"'<>)]+")
_NAMED = re.compile(
    r"(?i)\b([\w-]*(?:secret|token|password|signature|credential|accesskey|access_key)[\w-]*"
    r"[\"']?\s*[=:]\s*[\"']?)[^\s\"',;&]+"
)
_KEYLIKE = re.compile(r"(?<![\w/+=.-])(?=[\w/+=-]*\d)(?=[\w/+=-]*[A-Z])[\w/+=-]{16,}")


def without_secrets(url: str) -> str:
    """Returns the URL without user, password and query."""
    return _QUERY.sub("", _USERINFO.sub("", url))


def redacted(text: str) -> str:
    """Makes text of another program safe for a message. Returns the first line, or the first two lines if
    the first ends in a colon, and at most 200 characters. Removes users and queries of URLs, words that
    look like keys, and words that follow a name such as `token`."""
    line = (re.sub(r":\s*\n\s*", ": ", text.strip()).splitlines() or [""])[0]
    for pattern, instead in (
        (_USERINFO, ""),
        (_QUERY, "?..."),
        (_NAMED, r"\1***"),
        (_KEYLIKE, "***"),
    ):
        line = pattern.sub(instead, line)
    return line[:200]


def retry_after(headers: Mapping[str, str]) -> float:
    """Returns the seconds that Retry-After requests, or 0 if the header is missing, in the past, or
    invalid."""
    value = headers.get("retry-after", "").strip()
    if value.isascii() and value.isdigit():
        return float(value[:9])
    try:
        at = parsedate_to_datetime(value)
    except ValueError:
        return 0.0
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return max(0.0, (at - datetime.now(UTC)).total_seconds())


def is_version(version: str, etag: str) -> bool:
    """Whether two ETags may name the same version. "" is an unknown ETag."""
    bare, wanted = (tag.removeprefix("W/").strip('"') for tag in (version, etag))
    return not version or not etag or bare == wanted


def refusal(status: int, code: str, where: str, after: float = 0.0) -> SourceError:
    """Returns the error for a reply with this HTTP status and error code ("" if the reply has none).
    `after`: the seconds from `retry_after`."""
    answer = f"{status} {code}".strip()
    if code in _NO_BUCKET:
        return SourceUnreachableError(f"{where}: there is no such bucket ({answer})")
    if code in _ELSEWHERE or 300 <= status < 400:
        return SourceUnreachableError(
            f"{where}: the bucket is in another region ({answer}): set `region` of the source"
        )
    if code in _WRONG_KEYS:
        return SourceUnreachableError(f"{where}: {_WRONG_KEYS[code]} ({answer})")
    if code in _EXPIRED:  # the next attempt may find new credentials
        return TransientError(f"the credentials have expired ({answer}): renew them")
    if code in _THROTTLED or status in (429, 503):
        return TransientError(f"the store is throttling ({answer})", throttled=True, after=after)
    if code in _ARCHIVED:
        return UnitError(f"the object is archived: restore it first ({answer})")
    match status:
        case 404 | 410:
            return GoneError(f"the object was deleted after it was listed ({answer})")
        case 412:
            return UnitError(f"the object changed since it was listed ({answer})")
        case 416:
            return UnitError(f"the object is shorter than the listing says ({answer})")
        case 401:
            return SourceUnreachableError(
                f"{where}: the store does not accept the credentials ({answer})"
            )
        case 403:
            reason = f"access denied ({answer}): may these credentials read it?"
            return TransientError(reason, denied=True)
        case 407:
            return SourceUnreachableError(
                f"{where}: the proxy requires a user and a password ({answer}): see HTTP_PROXY and "
                "HTTPS_PROXY"
            )
        case 502 | 504:
            return TransientError(f"a proxy cannot reach the store ({answer})")
        case _:
            return TransientError(f"the store answers {answer}")
