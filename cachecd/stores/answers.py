"""Turns a store's error reply into an error: the object is at fault, or the store, or a retry may succeed.

Uses only the HTTP status and the error code of the body. The rest of the body may hold parts of the signed
request, so no message quotes it.
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
    """Makes text of another program safe for a message: returns its first line (the first two, if the first
    ends in a colon), at most 200 characters. Removes users and queries of URLs, and secrets: words that
    look like keys, or that follow a name such as `token`."""
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
    """Returns the seconds that Retry-After requests; 0 if it is absent, past, or invalid."""
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
    """Returns the error for a reply with this HTTP status and error code ("" without a code). `after`: the
    seconds that its Retry-After requests."""
    answer = f"{status} {code}".strip()
    if code in _NO_BUCKET:
        return SourceUnreachableError(f"{where}: there is no such bucket ({answer})")
    if code in _ELSEWHERE or 300 <= status < 400:
        return SourceUnreachableError(
            f"{where}: the bucket is in another region ({answer}): set `region` of the source"
        )
    if code in _WRONG_KEYS:
        return SourceUnreachableError(f"{where}: {_WRONG_KEYS[code]} ({answer})")
    if code in _EXPIRED:  # the chain may find new credentials before the next attempt
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
