"""The only parser of source URLs. Pure.

A URL names a place (a bucket, a repository, a host) and, behind the slash that ends the place, a prefix.
Prefixes and keys are literal: nothing is decoded, normalized or dropped. The object of a key has the name
prefix + key in its store. Only the URLs of web servers are encoded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Final
from urllib.parse import quote, unquote

# URLs of sources whose manifest names objects of any web server.
EVERY_HOST: Final = ("http://", "https://")
OBJECT_STORES: Final = ("s3", "gs", "az")  # keys may be any text, and listings have ETags

_SYNONYMS = {"s3a": "s3", "azure": "az", "abfs": "az", "abfss": "az", "adl": "az", "https": "http"}
_ARN = r"arn:[\w-]+:s3[\w-]*:[\w-]*:\d{12}:(?:outpost[/:][\w-]+[/:])?accesspoint[/:][\w.-]+"
# A revision with slashes is one of the Hub's own references, or has them as %2F.
_HUB = (
    "(?:(?:datasets|models|spaces)/)?(?!(?:datasets|models|spaces|buckets)/)[^/@]+/[^/@]+"
    "(?:@(?:refs/(?:convert|pr)/[^/]+|[^/]+))?"
)
_NO_PATH = r"(?:^|/)\.{0,2}(?:/|$)"
# Names that obstore cannot use, because it treats keys as paths: control characters, and parts that are
# empty, "." or "..". A slash at either end makes an empty part, which obstore drops silently.
NO_PATH: Final = rf"{_NO_PATH}|[\x00-\x1f\x7f]"
_PARTS = "without parts that are empty, '.' or '..'"
# For each scheme: the pattern of the place, the pattern that no prefix may match, and the expected form.
_SCHEMES = {
    "s3": (rf"[\w.-]+|{_ARN}", "(?!)", "BUCKET/PREFIX/, or the ARN of an access point as BUCKET"),
    "gs": (r"[\w.-]+", NO_PATH, f"BUCKET/PREFIX/, {_PARTS}, or control characters"),
    "az": (r"[\w.$@-]+", NO_PATH, f"CONTAINER/PREFIX/, {_PARTS}, or control characters"),
    "hf": (_HUB, _NO_PATH, f"datasets/OWNER/NAME[@REVISION]/FOLDER/, {_PARTS}"),
    "file": ("(?=/)", r"/\.\.?/", "/FOLDER/, an absolute path without '.' and '..'"),
    "http": ("[^/?#]+", "[?#]", "HOST/FOLDER/, without ? and #"),
}


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed URL. `scheme`: without synonyms; "" for a URL without a host. `place`: "" for files.
    `prefix`: "", or text that ends with a slash. `root`: the URL's text before the prefix."""

    scheme: str
    place: str
    prefix: str
    root: str

    @staticmethod
    @cache
    def of(url: str) -> Address:
        """Parses a URL. ValueError has the found and the expected text."""
        written, separator, rest = url.partition("://")
        if not separator or not re.fullmatch("[a-z][a-z0-9+.-]*", written):
            example = f"file://{url}" if url.startswith("/") else "s3://bucket/train/"
            raise ValueError(f"found {url!r}, expected a URL such as {example}")
        if url in EVERY_HOST:
            return Address("", "", "", "")
        scheme = _SYNONYMS.get(written, written)
        if scheme not in _SCHEMES:  # fsspec knows the syntax
            return Address(scheme, rest, "", url.rstrip("/") + "/")
        place, never, expected = _SCHEMES[scheme]
        match = re.fullmatch(rf"({place})(?:/(.*))?", rest, re.DOTALL | re.ASCII)
        prefix = (match and match[2]) or ""
        prefix += "/" if prefix and prefix[-1] != "/" else ""
        if match is None or re.search(never, f"x/{prefix}x"):
            raise ValueError(f"found {url!r}, expected {written}://{expected}")
        return Address(scheme, match[1], prefix, f"{written}://{match[1]}/")

    def url_of(self, key: str) -> str:
        """Returns the URL of the object `key` below this address."""
        return self.root + self.prefix + (quote(key) if self.scheme == "http" else key)

    def key_of(self, url: str) -> str | None:
        """Returns the key of the object at `url`, or None if the object is not below this address."""
        key = url.removeprefix(below := self.root + self.prefix)
        return None if below + key != url else unquote(key) if self.scheme == "http" else key
