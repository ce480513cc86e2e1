"""A file is written whole, or not at all."""

import os
import stat

import pytest

from vfl_flower.files import write_whole


@pytest.fixture
def target(tmp_path):
    """Return a file that is there, in a folder of its own."""
    path = tmp_path / "[a] report.txt"  # brackets are no pattern
    write_whole(path, b"first")
    return path


def only(path):
    """Return the content of a file that is alone in its folder."""
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    return path.read_bytes()


@pytest.mark.parametrize(
    "content",
    [b"second", b"", lambda file: file.write(b"second")],
    ids=["bytes", "none", "function"],
)
@pytest.mark.parametrize("private", [False, True])
def test_a_new_file_replaces_the_earlier_one(target, content, private):
    write_whole(target, content, private=private)
    assert only(target) == (content if isinstance(content, bytes) else b"second")


@pytest.mark.parametrize(("private", "mode"), [(True, 0o600), (False, 0o640)])
def test_who_may_read_it(target, private, mode):
    """Whatever the mode of the earlier file: a public one is as the user's umask."""
    for before in (0o600, 0o666):
        target.chmod(before)
        previous = os.umask(0o027)
        try:
            write_whole(target, b"secret", private=private)
        finally:
            os.umask(previous)
        assert stat.S_IMODE(target.stat().st_mode) == mode


def test_nobody_else_may_read_it_while_it_is_written(target):
    seen = []

    def content(file):
        (part,) = (path for path in target.parent.iterdir() if path != target)
        seen.append((stat.S_IMODE(part.stat().st_mode), target.read_bytes()))

    write_whole(target, content, private=True)
    assert seen == [(0o600, b"first")]


@pytest.mark.parametrize("name", ["replace", "fsync", "open"])
@pytest.mark.parametrize("error", [OSError(28, "No space left"), KeyboardInterrupt()])
def test_a_failed_write_leaves_the_earlier_file(target, monkeypatch, name, error):
    def fail(*_):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(os, name, fail)
        with pytest.raises(type(error)):
            write_whole(target, b"second", private=True)
    assert only(target) == b"first"


def test_a_content_that_fails_leaves_the_earlier_file(target):
    def content(file):
        file.write(b"sec")
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        write_whole(target, content)
    assert only(target) == b"first"


def test_what_a_killed_process_left_is_removed(target):
    """It may hold secrets; that of another file is left alone."""
    left = target.with_name(f".{target.name}.0123abcd.part")
    other = target.with_name(".report.txt.0123abcd.part")
    for path in (left, other):
        path.write_bytes(b"half of a secret")
    write_whole(target, b"second")
    assert not left.exists()
    assert other.exists()


def test_the_folder_must_exist(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_whole(tmp_path / "none" / "a.txt", b"")


def test_only_a_private_file_waits_for_the_disk(target, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(handle))
    write_whole(target, b"public")
    assert not synced
    write_whole(target, b"private", private=True)
    assert len(synced) == 1
