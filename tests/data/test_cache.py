"""The cache of converted party files."""

import json
import os
import stat
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from party_files import TEXT, load, refusal

from vfl_flower.data import StoredRows, conversion
from vfl_flower.data.cache import CacheEntry
from vfl_flower.data.source import PartySource


@pytest.fixture
def conversions(monkeypatch):
    calls = []
    convert = conversion.convert

    def counted(path, *args):
        calls.append(path)
        return convert(path, *args)

    monkeypatch.setattr(conversion, "convert", counted)
    return calls


def test_a_file_is_converted_once(write, conversions, cache):
    path = write(TEXT)
    first, second = (load(path, id_column="id", label_column="b") for _ in range(2))
    assert len(conversions) == 1
    np.testing.assert_array_equal(first.X, second.X)
    np.testing.assert_array_equal(first.y, second.y)
    assert first.ids_digest == second.ids_digest
    for party in (first, second):
        assert isinstance(party.X.base, np.memmap)
        assert not party.X.flags.writeable
    assert stat.S_IMODE((cache / "parties").stat().st_mode) == 0o700
    files = list((cache / "parties").iterdir())
    endings = {"".join(file.suffixes) for file in files}
    assert endings == {".X.npy", ".at.npy", ".ids.npy", ".json", ".y.npy"}
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_an_encoding_is_another_entry_and_its_content_counts(write, conversions):
    path = write(TEXT)
    own = load(path, standardize=True).encoding
    other = json.loads(json.dumps(own))
    other["columns"][0]["mean"][0] += 1
    for _ in range(2):
        first, second = load(path, own), load(path, other)
        assert first.X[0, 0] == second.X[0, 0] + 1 / own["columns"][0]["scale"][0]
        assert (first.encoding, second.encoding) == (own, other)
    load(path, json.loads(json.dumps(own, sort_keys=True)))
    assert len(conversions) == 3


def test_a_changed_file_replaces_its_entries(write, conversions, cache):
    path = write(TEXT)
    load(path)
    load(path, standardize=True)
    before = path.stat()
    write(TEXT.replace("5", "6"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert load(path).X[1, 2] == 6
    assert len(conversions) == 3
    assert len(list(cache.glob("parties/*.json"))) == 1
    write(TEXT + "3,6,7\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert load(path).n_rows == 3


@pytest.mark.parametrize("ending", [".X.npy", ".y.npy", ".json"])
@pytest.mark.parametrize("damage", ["missing", "empty", "half", "garbage", "other"])
def test_a_damaged_entry_is_made_again(write, conversions, cache, ending, damage):
    path = write(TEXT)
    expected = load(path, label_column="b")
    (file,) = cache.glob(f"parties/*{ending}")
    whole = file.read_bytes()
    if damage == "missing":
        file.unlink()
    else:
        other = cache / "other.npy"
        np.save(other, np.ones((1, 1)))
        file.write_bytes(
            {
                "empty": b"",
                "half": whole[: len(whole) // 2],
                "garbage": b"garbage" * 99,
                "other": b"[1]" if ending == ".json" else other.read_bytes(),
            }[damage]
        )
    party = load(path, label_column="b")
    assert len(conversions) == 2
    np.testing.assert_array_equal(party.X, [[1, 2], [2, 4]])
    np.testing.assert_array_equal(party.y, [3, 5])
    assert party.columns == expected.columns


def test_a_failed_write_leaves_no_entry(write, monkeypatch, cache, caplog):
    def full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    party = load(write(TEXT))
    assert party.X.tolist() == [[1, 2, 3], [2, 4, 5]]
    assert list((cache / "parties").iterdir()) == []
    assert "every message converts the file again" in caplog.text


def test_a_file_that_changes_while_it_is_read_is_refused(write, monkeypatch):
    path = write(TEXT)
    stored = conversion._stored

    def slow(*args):
        arrays = stored(*args)
        write(TEXT + "3,6,7\n")
        return arrays

    monkeypatch.setattr(conversion, "_stored", slow)
    assert "changed while it was being read" in refusal(path)


def test_a_second_load_imports_and_reads_little(write):
    """A new process imports no heavy package, and does not read the file."""
    path = write(TEXT)
    expected = load(path).X.tolist()
    assert expected == [[1, 2, 3], [2, 4, 5]]
    before = path.stat()
    path.write_bytes(bytes(before.st_size))  # it is not read again
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    code = f"""
import sys
from vfl_flower.data.source import PartySource
from vfl_flower.data import load_party
assert load_party(PartySource(data={str(path)!r})).X.tolist() == {expected}
print(*[m for m in ("pandas", "pyarrow", "scipy", "sklearn") if m in sys.modules])
"""
    printed = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert printed.strip() == ""


@pytest.mark.parametrize("ending", [".json", ".X.npy"])
def test_an_entry_that_is_a_link_is_none(write, conversions, cache, ending, tmp_path):
    path = write(TEXT)
    load(path)
    (entry,) = cache.glob(f"parties/*{ending}")
    entry.rename(tmp_path / "elsewhere")
    entry.symlink_to(tmp_path / "elsewhere")
    load(path)
    assert len(conversions) == 2
    assert not entry.is_symlink()


@pytest.mark.skipif(os.name != "posix", reason="modes and users are those of POSIX")
@pytest.mark.parametrize("mode", [0o720, 0o702, "another user"])
def test_a_folder_that_others_own_or_may_write_to_has_no_entries(
    write, conversions, cache, mode, monkeypatch
):
    path = write(TEXT)
    load(path)
    if mode == "another user":
        user = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    else:
        (cache / "parties").chmod(mode)
    load(path)
    assert len(conversions) == 2
    assert stat.S_IMODE((cache / "parties").stat().st_mode) == 0o700


def test_all_copies_of_a_file_are_dropped(write, cache):
    """Rows are forgotten: a copy under other options, or one begun, has them too."""
    path, other = write(TEXT), write(TEXT, name="other.csv")
    load(other)
    kept = set(cache.rglob("*.*"))
    load(path)
    load(path, id_column="id", label_column="b")
    (entry,) = (p for p in set(cache.rglob("*.y.npy")) - kept)
    entry.with_name(f".{entry.name}.0123.part").touch()
    StoredRows(PartySource(data=str(path))).drop_cache()
    assert set(cache.rglob("*.*")) == kept


def test_an_entry_is_named_by_all_that_it_depends_on(tmp_path):
    options = [
        *({"id_column": "id"}, {"label_column": "b"}, {"columns": ("a",)}),
        *({"missing": ("?",)}, {"delimiter": ";"}, {"text_encoding": "latin-1"}),
        *({"header": False}, {"max_levels": 3}, {"levels": {"a": ("f", "m")}}),
        *({"rows": True}, {"standardize": True}, {"one_hot": False}),
        {"impute": "median"},
    ]
    path, stamp, plain = tmp_path / "a.csv", (1, 2), PartySource(data="a.csv")
    sources = [plain, *(replace(plain, **changed) for changed in options)]
    entries = [
        *(CacheEntry.of(path, stamp, source, False, None) for source in sources),
        CacheEntry.of(tmp_path / "b.csv", stamp, plain, False, None),
        CacheEntry.of(path, (1, 3), plain, False, None),
        CacheEntry.of(path, stamp, plain, True, None),
        CacheEntry.of(path, stamp, plain, False, {"columns": []}),
        CacheEntry.of(path, stamp, plain, False, None, "an order"),
    ]
    assert len({entry.key for entry in entries}) == len(entries)
    same = replace(plain, name="bank", index=2)
    assert CacheEntry.of(path, stamp, same, False, None) == entries[0]


def test_a_folder_that_is_a_link_is_no_cache(write, cache, tmp_path, caplog):
    (tmp_path / "elsewhere").mkdir()
    cache.mkdir()
    (cache / "parties").symlink_to(tmp_path / "elsewhere")
    load(write(TEXT))
    assert "symbolic link" in caplog.text
    assert not list((tmp_path / "elsewhere").iterdir())
