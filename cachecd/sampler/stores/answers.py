"""What a store's refusal means: for this object, for the whole store, or only for now.

Works from the HTTP status and the error code of the body alone. The rest of such a body may hold
parts of the signed request, so it never gets into a message.
"""

from __future__ import annotations

from cachecd.errors import SourceError, SourceUnreachableError, UnitError
from cachecd.sampler.stores.backend import TransientError

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


def refusal(status: int, code: str, where: str) -> SourceError:
    """The error for an answer with this HTTP status and error code ("" if it has none)."""
    answer = f"{status} {code}".strip()
    if code in _NO_BUCKET:
        return SourceUnreachableError(f"{where}: there is no such bucket ({answer})")
    if code in _ELSEWHERE or status in (301, 307):
        return SourceUnreachableError(
            f"{where}: the bucket is in another region ({answer}): set `region` of the source"
        )
    if code in _WRONG_KEYS:
        return SourceUnreachableError(f"{where}: {_WRONG_KEYS[code]} ({answer})")
    if code in _EXPIRED:  # the chain may have fresher ones by the next attempt
        return TransientError(f"the credentials have expired ({answer}): renew them")
    if code in _THROTTLED or status in (429, 503):
        return TransientError(f"the store is throttling ({answer})", throttled=True)
    if code in _ARCHIVED:
        return UnitError(f"the object is archived: restore it first ({answer})")
    match status:
        case 404 | 410:
            return UnitError(f"the object is gone since it was listed ({answer})")
        case 412:
            return UnitError(f"the object changed since it was listed ({answer})")
        case 416:
            return UnitError(f"the object is shorter than it was listed ({answer})")
        case 401:
            return SourceUnreachableError(
                f"{where}: the store does not accept the credentials ({answer})"
            )
        case 403:
            return TransientError(f"access denied ({answer}): may these credentials read it?")
        case _:
            return TransientError(f"the store answers {answer}")
