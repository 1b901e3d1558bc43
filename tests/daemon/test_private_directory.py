"""The directory of the socket: ours, and closed to others."""

from __future__ import annotations

import os

import pytest

from cachecd.daemon.ownership import make_private_directory
from cachecd.errors import DiskError


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_a_private_directory_is_for_user_and_group_with_any_umask(tmp_path, umask):
    old = os.umask(umask)
    try:
        make_private_directory(tmp_path / "run" / "cachecd")
    finally:
        os.umask(old)
    assert (tmp_path / "run" / "cachecd").stat().st_mode & 0o7777 == 0o750
    make_private_directory(tmp_path / "run" / "cachecd")


@pytest.mark.parametrize("mode", [0o755, 0o751, 0o770, 0o777])
def test_a_directory_with_wider_permissions_is_refused(tmp_path, mode):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(mode)
    with pytest.raises(DiskError, match=rf"has mode 0{mode:o}, expected at most 0750; .*chmod 750"):
        make_private_directory(tmp_path / "open")


def test_somebody_elses_directory_is_refused(monkeypatch, tmp_path):
    (tmp_path / "theirs").mkdir(0o700)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(DiskError, match=rf"theirs belongs to uid {os.getuid()}, not to this user"):
        make_private_directory(tmp_path / "theirs")


def test_a_private_directory_below_a_file_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DiskError, match=r"cannot create the directory .*: Not a directory"):
        make_private_directory(tmp_path / "file" / "cachecd" / "run")
    with pytest.raises(DiskError, match="is not a directory"):
        make_private_directory(tmp_path / "file")
