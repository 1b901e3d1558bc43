"""The parser of URLs: what it takes apart it puts together again, and no two texts are one place."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, reject
from hypothesis import strategies as st

from cachecd.config.address import Address

PLACES = (
    "s3://b",
    "gs://b",
    "az://c",
    "hf://datasets/o/n",
    "hf://o/n@a%2Fb",
    "file://",
    "http://h",
)
# Every character that some parser has an opinion of, and any other.
ODD = st.text(
    st.sampled_from("/.%2F0+?#[]{}*~$\\:@;=&\"' \n\taé\u0301") | st.characters(), max_size=12
)


def parsed(url: str) -> Address:
    try:
        return Address.of(url)
    except ValueError as error:
        reject()
        raise AssertionError from error


@given(st.sampled_from(PLACES), ODD, ODD)
def test_a_prefix_is_the_text_behind_the_place(place: str, prefix: str, key: str):
    address = parsed(f"{place}/{prefix}")
    assert address.prefix == (prefix if prefix[-1:] in ("", "/") else f"{prefix}/")
    assert address.root == f"{place}/"
    assert Address.of(address.root + address.prefix) == address
    assert address.key_of(address.url_of(key)) == key
    if address.scheme != "http":
        assert address.url_of(key) == f"{place}/{address.prefix}{key}"


@given(ODD, ODD)
def test_s3_takes_every_prefix_and_confuses_no_two(one: str, other: str):
    same = one == other or f"{one}/" == other or one == f"{other}/"
    assume(not same or one == other)
    assert (Address.of(f"s3://b/{one}") == Address.of(f"s3://b/{other}")) is (one == other)


@given(st.sampled_from(PLACES), ODD, ODD)
def test_a_longer_url_is_a_longer_prefix(place: str, prefix: str, folder: str):
    address = parsed(f"{place}/{prefix}")
    assume(folder.strip("/") and address.scheme != "http")
    longer = parsed(address.url_of(folder))
    assert longer.prefix in (f"{address.prefix}{folder}", f"{address.prefix}{folder}/")


ACCOUNT = "us-west-2:123456789012"


@pytest.mark.parametrize(
    "arn",
    [
        f"arn:aws:s3:{ACCOUNT}:accesspoint/name",
        f"arn:aws:s3:{ACCOUNT}:accesspoint:name",
        f"arn:aws-cn:s3:{ACCOUNT}:accesspoint/name",
        "arn:aws:s3::123456789012:accesspoint/alias.mrap",
        f"arn:aws:s3-object-lambda:{ACCOUNT}:accesspoint/name",
        f"arn:aws:s3-outposts:{ACCOUNT}:outpost/op-1/accesspoint/name",
    ],
)
def test_the_arn_of_an_access_point_is_a_bucket(arn: str):
    for prefix in ("", "/", "/train", "/train/", "/x//y/"):
        address = Address.of(f"s3://{arn}{prefix}")
        assert (address.scheme, address.place) == ("s3", arn)
        assert address.prefix.removesuffix("/") == prefix[1:].removesuffix("/")


@pytest.mark.parametrize(
    "url",
    [
        *(
            "s3://",
            "s3:///x/",
            "s3://b?x/",
            "s3://b%20/",
            "s3://arn:aws:s3:::bucket/x/",
            "gs://b#x/",
        ),
        *("az://", "hf://n", "hf://datasets/o", "http://h/x?y", "http://?", "file://x/", "file://"),
        *("file:///a/../b/", "file:///.", "gs://b//", "gs://b/a//b", "az://c/./a", "gs://b/a\nb/"),
        *("hf://o/n//", "hf://o/n/../x", "/x", "x", "S3://b/", "://b/"),
    ],
)
def test_what_names_no_place_is_refused_by_its_name(url: str):
    with pytest.raises(ValueError, match=r"^found .*, expected ") as caught:
        Address.of(url)
    assert repr(url) in str(caught.value)
