"""Parties that hold rows agree on their columns: by name, order, kind and levels."""

import logging

import numpy as np
import pytest
from deviating import RealParties, sums_of
from forgetting import removal

from vfl_flower import MUFC, FKKMeans, MUFCForgetClient, Party, simulate
from vfl_flower.party.columns import arrange, declared
from vfl_flower.party.consent import Consent, Limit
from vfl_flower.party.party import PartyError
from vfl_flower.protocol.frame import Frame
from vfl_flower.rows import ArrayRows
from vfl_flower.secure_aggregation.limbs import join_limbs
from vfl_flower.server.agreement import agree
from vfl_flower.server.exchange import FederationError, PartyFailed

NAMES = ["age", "height", "weight"]


def rows(n: int = 90, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    groups = rng.integers(2, size=(n, 1)) * np.array([4.0, -2.0, 6.0])
    return groups + rng.normal(size=(n, 3)) + [0.0, 10.0, 30.0]


def shuffled(X: np.ndarray, **options: object) -> list[Party]:
    """Return three parties of rows, each with its columns in an order of its own."""
    orders = [[0, 1, 2], [2, 0, 1], [1, 2, 0]]
    return [
        Party(X[m::3][:, order], columns=[NAMES[k] for k in order], **options)
        for m, order in enumerate(orders)
    ]


def straight(X: np.ndarray) -> list[Party]:
    return [Party(X[m::3], columns=NAMES) for m in range(3)]


def small(**settings: object) -> FKKMeans:
    return FKKMeans(2, 2, n_features=10, iterations=1, passes=2, n_init=1, **settings)


@pytest.mark.parametrize("standardize", [False, True])
def test_columns_in_another_order_give_the_same_clusters(standardize):
    X = rows()
    strategy = small(standardize=standardize)
    ours = simulate(strategy, shuffled(X), seed=1)
    theirs = simulate(strategy, straight(X), seed=1)
    for a, b in zip(ours.model.labels_, theirs.model.labels_, strict=True):
        np.testing.assert_array_equal(a, b)
    assert ours.metrics == theirs.metrics
    np.testing.assert_array_equal(ours.model.predict(X), theirs.model.predict(X))


def test_mufc_takes_the_order_of_the_first_party_which_is_that_of_the_box():
    both, strategy = (shuffled, straight), MUFC(n_clusters=2, box="-10,20;0,20;20,50")
    models = (simulate(strategy, make(rows()), seed=1).model for make in both)
    ours, theirs = (model.cluster_centers_ for model in models)
    np.testing.assert_array_equal(ours, theirs)


def test_mufc_forgets_in_the_order_of_training_whoever_is_left(tmp_path):
    X, server = rows(), tmp_path / "server"
    parties = shuffled(X)
    for m, party in enumerate(parties):
        party.ids, party.name = np.arange(90)[m::3], f"clinic-{m}"
        party.state_dir = tmp_path / party.name
        party.state_dir.mkdir(mode=0o700)
    strategy = MUFC(n_clusters=2, box="-10,20;0,20;20,50", server_state=server)
    model = simulate(strategy, parties, seed=1).model.id
    left = MUFCForgetClient(model, "clinic-0", server_state=server)
    assert simulate(left, parties[1:]).metrics["rows"] == 60
    task = removal(parties, server, model, {"clinic-1": [1, 4]})
    assert simulate(task, parties[1:]).metrics["removed"] == 2


def test_one_order_needs_no_word_of_the_server():
    told = [declared(party) for party in straight(rows())]
    assert agree("abc", told) is None
    assert agree("abc", [declared(p) for p in shuffled(rows())]) == told[0]["columns"]


def columns_of(*parties: Party) -> str:
    with pytest.raises(FederationError) as caught:
        simulate(small(), parties)
    return str(caught.value)


def test_a_missing_and_an_extra_column_are_named_with_their_parties():
    X = np.ones((30, 2))
    text = columns_of(
        Party(X, columns=["age", "weight"], name="north"),
        Party(X, columns=["weight", "age"], name="east"),
        Party(np.ones((30, 3)), columns=["age", "size", "sex"], name="south"),
    )
    assert text == (
        "all parties must hold the same columns: 'south' lacks 'weight' and also has "
        "'size', 'sex', unlike 'north'"
    )


def test_columns_that_may_not_be_named_are_counted():
    X, quiet = np.ones((30, 2)), Consent(leaves={"row-sums": Limit()}, peers=None)
    text = columns_of(
        Party(X, columns=["age", "hiv"], name="north", consent=quiet),
        Party(X, columns=["age", "weight"], name="south", consent=quiet),
        Party(X, columns=["age", "hiv"], name="east", consent=quiet),
    )
    counted = "'south' lacks column 1 of 'north' and also has column 1 of 'south'"
    assert counted in text
    assert "column-names = true" in text
    assert "hiv" not in text
    assert "weight" not in text


def test_more_than_a_few_columns_are_counted():
    names = [f"x{k}" for k in range(9)]
    X = np.ones((30, 9))
    other = [f"y{k}" for k in range(9)]
    text = columns_of(*(Party(X, columns=c) for c in (names, names, other)))
    assert "'x4' and 4 more" in text
    assert "'x5'" not in text


def test_parties_without_names_follow_the_others():
    X = rows()
    parties = [Party(X[::3]), *straight(X)[1:]]
    labels = simulate(small(), parties, seed=1).model.labels_
    theirs = simulate(small(), straight(X), seed=1).model.labels_
    np.testing.assert_array_equal(labels[0], theirs[0])


@pytest.mark.parametrize(
    ("columns", "unnamed"),
    [
        ([NAMES, NAMES, NAMES], None),
        ([NAMES, None, NAMES], "party-1"),
        ([None, NAMES, NAMES], "party-0"),
        ([None, None, None], "party-0, party-1, party-2"),
        ([["x0", "x1", "x7"]] * 3, "party-0, party-1, party-2"),
        ([["x0", "x1", "age"]] * 3, None),
    ],
)
def test_a_run_says_whose_columns_are_matched_by_position(columns, unnamed, caplog):
    caplog.set_level(logging.INFO, "vfl_flower")
    X = rows()
    parties = [Party(X[m::3], columns=names) for m, names in enumerate(columns)]
    simulate(MUFC(n_clusters=2, box="-20,60"), parties, seed=1)
    (said,) = (text for text in caplog.messages if text.startswith("3 parties: "))
    if unnamed is None:
        assert said.endswith("column names are the same")
    else:
        assert "columns are matched by position" in said
        assert said.endswith(f"no names at {unnamed}")


def test_a_party_takes_no_order_of_columns_that_it_lacks():
    party = Party(np.ones((3, 2)), columns=["a", "b"])
    wanted = declared(Party(np.ones((3, 2)), columns=["a", "c"]))["columns"]
    for order in (wanted, wanted[:1], declared(party)["columns"] * 2):
        with pytest.raises(PartyError, match="exactly this party's 2 columns, each"):
            arrange(party, order)


def test_another_order_or_other_rows_are_arranged_anew():
    """What is kept of the last time is of that order and of those rows."""
    orders = {
        names: declared(Party(np.ones((1, 3)), columns=list(names)))["columns"]
        for names in ("abc", "bca", "cab")
    }
    party, X = Party(np.ones((2, 3))), np.arange(6.0).reshape(2, 3)
    for rows, names in ((X, "bca"), (X, "cab"), (X + 10, "cab"), (X, "cab")):
        party.X, party.columns = rows, list("abc")
        arrange(party, orders[names])
        assert party.columns == list(names)
        np.testing.assert_array_equal(party.X, rows[:, ["abc".index(n) for n in names]])


def test_the_encoding_of_a_file_follows_the_order():
    """A text column takes its levels along: it is two columns of X."""
    city = {"name": "city", "levels": ["a", "b"]}
    age = {"name": "age", "levels": None}
    party = Party(np.array([[1.0, 0.0, 30.0]]), columns=["city=a", "city=b", "age"])
    party.encoding = {"format": 1, "columns": [city, age]}
    arrange(party, declared(party)["columns"][::-1])
    assert party.encoding == {"format": 1, "columns": [age, city]}
    assert party.columns == ["age", "city=a", "city=b"]
    assert party.X.tolist() == [[30.0, 1.0, 0.0]]


def test_rows_that_are_no_array_stand_in_the_order_already():
    party = Party(ArrayRows(np.ones((3, 2))), columns=["a", "b"])
    ours = declared(party)["columns"]
    arrange(party, ours)
    with pytest.raises(PartyError, match="must be listed in the same order"):
        arrange(party, ours[::-1])


def state_order(monkeypatch, *, first: bool) -> None:
    """Reverse the columns in the first message to party 0, or in all later messages."""
    order, original = declared(straight(rows())[0])["columns"], Frame.pack

    def pack(frame):
        packed, keeps = original(frame), first and frame.index > 0
        changed = {"columns": order if keeps else order[::-1]}
        return packed | changed if first == ("peers" in packed) else packed

    monkeypatch.setattr(Frame, "pack", pack)


def test_orders_that_differ_between_parties_give_noise(monkeypatch):
    """Otherwise a server could add one column of a party to another one's."""
    X = rows()
    plain = {"action": "kernel_kmeans_begin", "tamper": lambda *sent: sent[-1]}
    strategy = small(standardize=True)
    honest = sums_of(strategy, straight(X), **plain)["sum_x"]
    np.testing.assert_allclose(join_limbs(honest), X.sum(axis=0), rtol=1e-12)

    state_order(monkeypatch, first=True)
    noise = join_limbs(sums_of(strategy, straight(X), **plain)["sum_x"])
    assert np.abs(noise).max() > 1e20


def test_the_order_cannot_change_during_a_run(monkeypatch):
    state_order(monkeypatch, first=False)
    with pytest.raises(PartyFailed, match="order of the columns changed"):
        small().start(RealParties(shuffled(rows())))
