"""The party: its data are checked once, its streams are its own."""

import hashlib
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from vfl_flower import Party
from vfl_flower.clients.base import STEPS, Step, digest_ids, step

X = np.arange(6.0).reshape(3, 2)


def test_minimal():
    party = Party(X)
    assert party.n_rows == 3
    assert party.y is party.ids is party.ids_digest is party.name is party.index is None


def test_lists_do():
    party = Party([[1, 2], [3, 4]], y=[True, False], ids=["a", "b"], columns=["u", "v"])
    assert party.X.shape == (2, 2)
    assert party.ids_digest == digest_ids(np.array(["a", "b"]))


@pytest.mark.parametrize("dtype", [bool, np.int8, np.uint64, np.float32, np.float64])
def test_real_types_stay_as_they_are(dtype):
    data = np.ones((3, 2), dtype=dtype)
    assert Party(data, y=data[:, 0]).X is data


NAN = np.array([[1.0, 2.0], [np.nan, 4.0], [5.0, -np.inf]])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            {"X": np.ones(3)},
            "X of the party must be a matrix with at least one row and one column, got "
            "shape (3,)",
        ),
        (
            {"X": np.ones((0, 2)), "name": "airline"},
            "X of party 'airline' must be a matrix with at least one row and one "
            "column, got shape (0, 2)",
        ),
        (
            {"X": np.ones((2, 0))},
            "X of the party must be a matrix with at least one row and one column, got "
            "shape (2, 0)",
        ),
        (
            {"X": np.array([["a"], ["b"]])},
            "X of the party must hold real numbers, got dtype <U1",
        ),
        (
            {"X": np.ones((2, 1), dtype=complex)},
            "X of the party must hold real numbers, got dtype complex128",
        ),
        (
            {"X": np.ones((2, 1), dtype=object)},
            "X of the party must hold real numbers, got dtype object",
        ),
        (
            {"X": NAN, "name": "airline"},
            "X of party 'airline' must have no missing or infinite value, 2 found",
        ),
        (
            {"X": X, "y": np.ones(2)},
            "y of the party must have one label for each of the 3 rows, got shape (2,)",
        ),
        (
            {"X": X, "y": np.ones((3, 1))},
            "y of the party must have one label for each of the 3 rows, got shape "
            "(3, 1)",
        ),
        (
            {"X": X, "y": np.array(["a", "b", "c"])},
            "y of the party must hold real numbers, got dtype <U1",
        ),
        (
            {"X": X, "y": NAN[:, 1]},
            "y of the party must have no missing or infinite value, 1 found",
        ),
        (
            {"X": X, "y": np.array([np.nan, np.inf, 1.0]), "name": "airline"},
            "y of party 'airline' must have no missing or infinite value, 1 found",
        ),
        (
            {"X": X, "y": np.full(3, np.nan)},
            "y of the party must have at least one label, all are missing",
        ),
        (
            {"X": X, "ids": np.arange(4)},
            "ids of the party must have one id for each of the 3 rows, got shape (4,)",
        ),
        (
            {"X": X, "ids": np.array([17, 4, 17])},
            "ids of the party must be distinct, 1 rows repeat an id",
        ),
        (
            {"X": X, "columns": ["a"]},
            "columns of the party must name each of the 2 columns of X, got 1 names",
        ),
    ],
)
def test_bad_data(arguments, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)) as caught:
        Party(**arguments)
    assert str(caught.value) == sentence


def test_large_finite_values_are_no_missing_ones():
    Party(np.full((3, 2), 1e308))  # their sum overflows
    Party(np.array([[1e308, -1e308], [1e308, 1e308]]))


def test_missing_values_are_counted_over_blocks():
    data = np.zeros((70_000, 2))
    data[[3, 69_999], 1] = np.nan
    with pytest.raises(ValueError, match="2 found"):
        Party(data)


def test_checked_data_are_not_looked_at():
    assert np.isnan(Party(NAN, checked=True).X[1, 0])


@pytest.mark.parametrize(
    ("y", "count"),
    [
        (None, 0),
        ([1, 2, 3], 3),
        ([True, False, True], 3),
        ([0.0, np.nan, 0.0], 2),
        (np.array([np.nan, np.nan, 7], dtype=np.float32), 1),
    ],
)
def test_labels_that_the_party_knows(y, count):
    assert Party(X, y=y).n_labels == count


def test_state_dir_is_a_path():
    assert Party(X).state_dir is None
    assert Party(X, state_dir="/var/airline").state_dir == Path("/var/airline")


def test_representation_shows_no_state():
    party = Party(X)
    party.state["remembered"] = 1
    party.secret = 314159
    party.part = {"seed": "secret"}
    party.encoding = {"levels": ["secret"]}
    party.predictions = np.array([271828.0])
    for hidden in ("remembered", "314159", "secret=", "'secret'", "271828"):
        assert hidden not in repr(party)


# -- ids -------------------------------------------------------------------------------


def test_digest_of_ids():
    ids = np.array([7, 12, 3])
    assert digest_ids(ids) == hashlib.sha256(b"1:72:121:3").hexdigest()
    assert digest_ids(ids) == digest_ids(np.array(["7", "12", "3"]))
    assert digest_ids(ids) != digest_ids(np.array([12, 7, 3]))
    assert digest_ids(np.array(["1", "23"])) != digest_ids(np.array(["12", "3"]))
    assert digest_ids(np.array(["\u00e9"])) == hashlib.sha256(b"2:\xc3\xa9").hexdigest()


@pytest.mark.parametrize(
    ("ids", "others"),
    [
        (["a\x1fb", "c"], ["a", "b\x1fc"]),
        (["a", "1:b"], ["a1:b"]),
        (["1:a", "b"], ["1", "a1:b"]),
        (["a"], ["a", ""]),
    ],
)
def test_no_text_of_an_id_passes_for_the_end_of_one(ids, others):
    assert digest_ids(np.array(ids)) != digest_ids(np.array(others))


def test_given_digest_is_kept():
    assert Party(X, ids=np.arange(3), ids_digest="ab").ids_digest == "ab"


# -- streams ---------------------------------------------------------------------------


def stream(
    name: str = "draw", index: int = 0, seed: int = 0, secret: int = 0
) -> list[int]:
    party = Party(X, index=index)
    party.seed, party.secret = seed, secret
    return party.rng(name).integers(2**62, size=4).tolist()


def test_a_stream_is_given_by_seed_party_and_name():
    first = stream()
    assert stream() == first
    others = [stream("cluster"), stream(index=1), stream(seed=1)]
    others += [stream(secret=1), stream(secret=2), stream(secret=2**62 - 1)]
    assert len({tuple(numbers) for numbers in [first, *others]}) == 7
    assert stream(secret=2) == others[4]


@pytest.mark.parametrize(
    "name",
    [
        *("n_parties", "seed", "secret", "state", "share_rows", "allow_plain"),
        *("part", "encoding", "predictions", "row_ids"),
    ],
)
def test_what_a_run_sets_is_no_argument(name):
    with pytest.raises(TypeError, match=name):
        Party(X, **{name: 1})
    assert not getattr(Party(X), name)


def test_seed_and_party_are_not_added_up():
    assert stream(seed=1, index=0) != stream(seed=0, index=1)
    assert len(stream(seed=2**63 - 1)) == 4


def test_no_stream_outside_a_run():
    with pytest.raises(RuntimeError, match="only inside a step of a run"):
        Party(X).rng("draw")


# -- steps -----------------------------------------------------------------------------


@pytest.fixture
def registry(monkeypatch):
    monkeypatch.setattr("vfl_flower.clients.base.STEPS", found := {})
    return found


def test_step_registers_and_stays_a_plain_function(registry):
    @step("example_mean", sums=["total"])
    def mean(party: Party) -> dict[str, np.ndarray]:
        return {"total": party.X.mean(axis=1)}

    assert registry == {"example_mean": Step("example_mean", mean, ("total",))}
    np.testing.assert_array_equal(mean(Party(X))["total"], [0.5, 2.5, 4.5])


def test_step_says_what_leaves_the_party_only_in_a_sum(registry):
    @step("example_sums", sums=["total"], sealed=["scores", "angles_*"])
    def sums(party: Party) -> dict[str, np.ndarray]:
        return {}

    found = registry["example_sums"]
    assert found == Step("example_sums", sums, ("total",), ("scores", "angles_*"))
    names = ["total", "scores", "angles_0", "angles_12", "angles_", "angles", "totals"]
    assert [found.hides(name) for name in names] == [True] * 5 + [False] * 2
    assert [found.seals(name) for name in names] == [False] + [True] * 4 + [False] * 2
    assert not Step("example", sums).hides("total")


@pytest.mark.parametrize("name", ["Angles_0", "my_angles_0"])
def test_names_in_sums_are_matched_as_they_are(name):
    assert not Step("example", dict, sealed=("angles_*",)).hides(name)


def test_two_steps_of_one_name(registry):
    step("example")(lambda party: {})
    with pytest.raises(ValueError, match="action 'example' has a step already"):
        step("example")(lambda party: {})


def test_steps_of_the_package_are_there_with_the_app():
    import vfl_flower.client_app  # noqa: F401

    assert STEPS["coresets_scores"].sums == ("scores",)
    assert STEPS["coresets_totals"].sums == ()
    for action in ("angles", "iterate", "answer"):
        assert STEPS[f"fdskl_{action}"].seals("angles_2")
        assert STEPS[f"fdskl_{action}"].sums == ()
    assert STEPS["fdskl_distances"].seals("distances")


def test_columns_of_a_data_frame():
    frame = pd.DataFrame({"age": [1, 2], 7: [3, 4]})
    assert Party(frame).columns == ["age", "7"]
    assert Party(frame, columns=frame.columns[::-1]).columns == ["7", "age"]
    assert Party(frame.to_numpy()).columns is None
