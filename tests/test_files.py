"""A file is written whole, or not at all, and sized before it is loaded."""

import io
import os
import stat
import tracemalloc
import zipfile

import numpy as np
import pytest

from vfl_flower import files


@pytest.fixture
def target(tmp_path):
    path = tmp_path / "[a] report.txt"  # brackets are no pattern
    files.write_whole(path, b"first")
    return path


def only(path):
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    return path.read_bytes()


@pytest.mark.parametrize("content", [b"second", b""])
@pytest.mark.parametrize("private", [False, True])
def test_a_new_file_replaces_the_earlier_one(target, content, private):
    files.write_whole(target, content, private=private)
    assert only(target) == content
    with files.whole_file(target, private=private) as file:
        file.write(b"third")
    assert only(target) == b"third"


@pytest.mark.parametrize(("private", "mode"), [(True, 0o600), (False, 0o640)])
def test_who_may_read_it(target, private, mode):
    """Whatever the mode of the earlier file: a public one is as the user's umask."""
    for before in (0o600, 0o666):
        target.chmod(before)
        previous = os.umask(0o027)
        try:
            files.write_whole(target, b"secret", private=private)
        finally:
            os.umask(previous)
        assert stat.S_IMODE(target.stat().st_mode) == mode


def test_nobody_else_may_read_it_while_it_is_written(target):
    with files.whole_file(target, private=True):
        (part,) = (path for path in target.parent.iterdir() if path != target)
        assert stat.S_IMODE(part.stat().st_mode) == 0o600
        assert target.read_bytes() == b"first"


@pytest.mark.parametrize("name", ["replace", "fsync", "open"])
@pytest.mark.parametrize("error", [OSError(28, "No space left"), KeyboardInterrupt()])
def test_a_failed_write_leaves_the_earlier_file(target, monkeypatch, name, error):
    def fail(*_):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(os, name, fail)
        with pytest.raises(type(error)):
            files.write_whole(target, b"second", private=True)
    assert only(target) == b"first"


def test_a_content_that_fails_leaves_the_earlier_file(target):
    def fail(file):
        file.write(b"sec")
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"), files.whole_file(target) as file:
        fail(file)
    assert only(target) == b"first"


def test_what_a_killed_process_left_is_removed(target):
    """It may hold secrets; that of another file is left alone."""
    left = target.with_name(f".{target.name}.0123abcd.part")
    other = target.with_name(".report.txt.0123abcd.part")
    for path in (left, other):
        path.write_bytes(b"half of a secret")
    files.write_whole(target, b"second")
    assert not left.exists()
    assert other.exists()


def test_the_folder_must_exist(tmp_path):
    with pytest.raises(FileNotFoundError):
        files.write_whole(tmp_path / "none" / "a.txt", b"")


def test_only_a_private_file_waits_for_the_disk(target, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(handle))
    files.write_whole(target, b"public")
    assert not synced
    files.write_whole(target, b"private", private=True)
    assert len(synced) == 1


# -- files that are small on the disk alone --------------------------------------------


def header(shape, dtype="<f8", least=0):
    text = str({"descr": dtype, "fortran_order": False, "shape": shape}).encode()
    text = text.ljust(least) + b"\n"
    return b"\x93NUMPY\x02\x00" + len(text).to_bytes(4, "little") + text


def archive(pieces, kind=zipfile.ZIP_DEFLATED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", kind) as packed, packed.open("X.npy", "w") as entry:
        for piece in pieces:
            entry.write(piece)
    return file


ZEROS = bytes(2**20)
BOMBS = {
    "80 MB of zeros": lambda: [header((80, 2**17)), *[ZEROS] * 80],
    "a header of 80 MB": lambda: [header((1,), least=80 * 2**20)],
    "no rows of 2^40 columns": lambda: [header((0, 2**40))],
    "2^40 empty texts": lambda: [header((2**40,), "<U0")],
    "2^40 rows, by two wrong signs": lambda: [header((-(2**20), -(2**20)))],
    "2^40 numbers that are not there": lambda: [header((2**40,))],
}
"""Made in their test, so that no process keeps them from its start to its end."""


@pytest.mark.parametrize("pieces", BOMBS.values(), ids=BOMBS)
def test_an_npz_is_sized_before_it_is_loaded(pieces):
    file = archive(pieces())
    assert file.tell() < 2**19
    tracemalloc.start()
    try:
        with pytest.raises(
            files.UnpackedSizeError, match=r"the limit is \d+ \(100 times"
        ):
            files.read_npz(file)
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_an_npz_is_packed_as_numpy_does_it(kind):
    """These unpack a whole piece at once: 100 MB from 4 kB."""
    with pytest.raises(ValueError, match="may use only deflate compression"):
        files.read_npz(archive([header((3,)), bytes(24)], kind))


def test_many_names_for_the_same_bytes_count_each():
    file = archive([header((2**20,)), bytes(2**23)], zipfile.ZIP_STORED)
    with zipfile.ZipFile(file) as packed:
        assert files.read_npz(file)["X"].shape == (2**20,)
        (entry,) = packed.infolist()
    content = file.getvalue()
    place = content.rindex(b"PK\x05\x06")
    directory = content[packed.start_dir : place]
    count = 200
    end = bytearray(content[place:])
    end[8:12] = count.to_bytes(2, "little") * 2
    end[12:16] = (count * len(directory)).to_bytes(4, "little")
    twice = content[: packed.start_dir] + directory * count + bytes(end)
    with pytest.raises(files.UnpackedSizeError):
        files.read_npz(io.BytesIO(twice))
    assert entry.file_size * count < 2**31


def test_an_npz_comes_back():
    file, arrays = io.BytesIO(), {"X": np.eye(3), "ids": np.array(["a", "é"])}
    np.savez_compressed(file, **arrays)
    for name, array in files.read_npz(file).items():
        np.testing.assert_array_equal(array, arrays[name])
    assert list(files.read_npz(file, ["ids", "y"])) == ["ids"]
    with pytest.raises(ValueError, match="must not be compressed"):
        files.read_npz(file, compressed=False)


def test_nothing_is_unpickled(tmp_path):
    path = tmp_path / "objects.npz"
    np.savez(path, X=np.array([print], dtype=object))
    with path.open("rb") as file:
        with pytest.raises(ValueError, match="pickle"):
            files.read_npz(file)
        with pytest.raises(ValueError, match="pickle"):
            files.map_npz(file, ["X"])


def test_a_header_that_promises_more_than_there_is(tmp_path):
    path = tmp_path / "short.npz"
    packed = archive([header((1000,)), bytes(8)], zipfile.ZIP_STORED)
    path.write_bytes(packed.getvalue())
    with path.open("rb") as file, pytest.raises(ValueError, match="fewer bytes than"):
        files.map_npz(file, ["X"])


def test_what_a_file_may_grow_to():
    files.check_growth(files.SMALL + 700, 7)
    with pytest.raises(
        files.UnpackedSizeError, match=f"least {files.SMALL + 701} bytes; .* 7 b"
    ):
        files.check_growth(files.SMALL + 701, 7)


def test_a_file_is_not_made_through_a_link(tmp_path):
    files.make_private(tmp_path / "a")
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic link"):
        files.make_private(tmp_path / "link")
    assert not (tmp_path / "elsewhere").exists()
