"""Party files with other rows each are aligned, and later runs use the order."""

import functools
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, RecordDict

import vfl_flower as vf
from vfl_flower import Alignment, CoresetVRLR, FederationError, Party, PartyFailed
from vfl_flower.app import client_app
from vfl_flower.app.config import check_run_config, make_strategy, party_source
from vfl_flower.app.register import make_client_app
from vfl_flower.clients import alignment as client
from vfl_flower.party.party import PartyError
from vfl_flower.party.row_order import accept_order, load_order, read_order, save_order
from vfl_flower.simulation import InProcessGrid

NAMES = "airline", "weather", "registry"
N = 60


def write(folder: Path, j: int, order, drop=()) -> Path:
    rng = np.random.default_rng(3)
    X = rng.normal(size=(N, 6))
    y = X @ np.arange(1.0, 7.0) + 2
    lines = [f"id,a,b{',y' if j == 2 else ''}"]
    for k in order:
        if k % (11 + j) and k not in drop:
            values = [f"r{k}", *X[k, 2 * j : 2 * j + 2], *([y[k]] if j == 2 else [])]
            lines.append(",".join(map(str, values)))
    path = folder / f"{NAMES[j]}.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


COMMON = [k for k in range(N) if k % 11 and k % 12 and k % 13]


class FileGrid(InProcessGrid):
    """Parties that load files as on SuperNodes, from node config and run config."""

    def __init__(self, folder: Path, run_config, **node_config) -> None:
        super().__init__([Party(np.ones((1, 1)))] * 3)
        self._app = make_client_app(client_app.load_from_context)
        (folder / "consent.toml").write_text(
            "trust-on-first-use = true\n[leaves]\nrows = true\ntotals = true\n"
            "coefficients = true\nrow-sums = true\npredictions = true\n"
            "moments = true\n"
        )
        (folder / "consent.toml").chmod(0o600)
        for j, node in enumerate(list(self._contexts)):
            known = self._contexts[node]
            config = {
                "data": str(folder / f"{NAMES[j]}.csv"),
                "id-column": "id",
                "party-name": NAMES[j],
                "partition-id": j,
                "state-dir": str(folder / f"state-{j}"),
                "consent": str(folder / "consent.toml"),
                **({"label-column": "y"} if j == 2 else {}),
                **node_config,
            }
            self._contexts[node] = Context(
                known.run_id, node, config, RecordDict(), dict(run_config)
            )

    def load(self, j: int) -> Party:
        return client_app.load_from_context(list(self._contexts.values())[j])


def run(folder: Path, config, **node_config):
    checked = check_run_config(config)
    return make_strategy(checked).start(FileGrid(folder, config, **node_config))


ALIGN = {"strategy": "align", "alignment": "2026-q4"}
TRAIN = {"strategy": "coreset-vrlr", "coreset-vrlr.sampling": "full"}
TRAIN |= {"alignment": "2026-q4"}


@pytest.fixture
def folder(tmp_path) -> Path:
    rng = np.random.default_rng(1)
    for j in range(3):
        write(tmp_path, j, rng.permutation(N).tolist())
    assert run(tmp_path, ALIGN).metrics == {"common": len(COMMON)}
    for j in range(3):
        accept_order(tmp_path / f"state-{j}", "2026-q4")
    return tmp_path


def ids_of(folder, j, config=TRAIN, **node_config):
    party = FileGrid(folder, config, **node_config).load(j)
    return list(party.read_ids())


def test_a_later_run_has_the_common_rows_in_one_order(folder):
    loaded = [FileGrid(folder, TRAIN).load(j) for j in range(3)]
    ids = [list(party.read_ids()) for party in loaded]
    assert ids[0] == ids[1] == ids[2]
    assert sorted(ids[0]) == sorted(f"r{k}" for k in COMMON)
    X = np.random.default_rng(3).normal(size=(N, 6))
    rows = [int(one[1:]) for one in ids[0]]
    np.testing.assert_allclose(np.hstack([p.X for p in loaded]), X[rows])
    np.testing.assert_allclose(loaded[2].y, X[rows] @ np.arange(1.0, 7.0) + 2)
    # The server compares a digest that tells nothing of ids.
    assert {party.ids_digest for party in loaded} == {loaded[0].ids_digest}
    assert loaded[0].ids_digest.startswith("alignment 2026-q4 ")
    result = run(folder, TRAIN)
    np.testing.assert_allclose(
        np.concatenate(result.model.coef_), np.arange(1.0, 7.0), atol=1e-6
    )


def test_without_an_alignment_the_files_do_not_fit(folder):
    with pytest.raises(FederationError, match="must hold the same number of rows"):
        run(folder, TRAIN | {"alignment": ""})


def test_a_node_config_may_name_the_order(folder):
    named = {"alignment": "2026-q4"}
    run_config = TRAIN | {"alignment": ""}
    assert ids_of(folder, 0, run_config, **named) == ids_of(folder, 0)
    with pytest.raises(PartyError, match="alignment must be '2026-q4', as this party"):
        ids_of(folder, 0, TRAIN | {"alignment": "other"}, **named)
    # What makes the order takes all rows again.
    assert len(ids_of(folder, 0, ALIGN, **named)) > len(COMMON)


def test_a_changed_file_is_aligned_by_its_ids(folder, caplog):
    before = ids_of(folder, 1)
    write(folder, 1, range(N))
    caplog.set_level(logging.INFO)
    assert ids_of(folder, 1) == before
    X = np.random.default_rng(3).normal(size=(N, 6))
    rows = [int(one[1:]) for one in before]
    np.testing.assert_allclose(FileGrid(folder, TRAIN).load(1).X, X[rows, 2:4])
    assert f"'weather': {len(COMMON)} of its 55 rows, by alignment" in caplog.text


def test_a_file_that_lacks_ids_is_refused(folder):
    write(folder, 1, range(N), drop=COMMON[:2])
    rule = rf"must hold all {len(COMMON)} ids of alignment '2026-q4', 2 are missing"
    with pytest.raises(PartyFailed, match=rule) as caught:
        run(folder, TRAIN)
    assert "r1" not in str(caught.value)


def test_a_file_that_changes_during_the_alignment_is_refused(tmp_path, monkeypatch):
    """Its shuffled list is of the earlier rows, so their places mean other ids now."""
    for j in range(3):
        write(tmp_path, j, range(N))
    whole, written = client.encrypt_points.function, []

    def encrypt_points(member, points):
        if member.index == 1 and not written:
            written.append(write(tmp_path, 1, range(N - 1, -1, -1)))
        return whole(member, points)

    functools.update_wrapper(encrypt_points, whole)
    monkeypatch.setattr(client.encrypt_points, "function", encrypt_points)
    with pytest.raises(PartyFailed, match="changed during the run") as caught:
        run(tmp_path, ALIGN)
    assert caught.value.party == "weather"
    assert not (tmp_path / "state-1" / "alignment-2026-q4.npz").exists()


def test_orders_of_two_runs_do_not_mix(folder):
    """Where a party has missed the last one."""
    for j in (1, 2):
        (folder / f"state-{j}" / "alignment-2026-q4.npz").unlink()
    other = {**ALIGN, "alignment": "other"}
    run(folder, other)
    for j in (1, 2):
        order = read_order(folder / f"state-{j}", "other")
        save_order(folder / f"state-{j}", replace(order, name="2026-q4"))
        accept_order(folder / f"state-{j}", "2026-q4")
    with pytest.raises(FederationError, match="row ids"):
        run(folder, TRAIN)


def test_another_order_under_the_same_tag_is_not_taken_from_the_cache(folder):
    """A server that repeats a tag would have X in one order and ids in another."""
    before, ids = FileGrid(folder, TRAIN).load(0), ids_of(folder, 0)
    order = load_order(folder / "state-0", "2026-q4")
    (folder / "state-0" / "alignment-2026-q4.npz").unlink()
    save_order(folder / "state-0", replace(order, ids=order.ids[::-1]))
    accept_order(folder / "state-0", "2026-q4")
    after = FileGrid(folder, TRAIN).load(0)
    assert list(after.read_ids()) == ids[::-1]
    np.testing.assert_array_equal(after.X, before.X[::-1])


@pytest.mark.parametrize(
    ("config", "node", "rule"),
    [
        ({"alignment": "2027"}, {}, "has no alignment '2027': name another"),
        ({"alignment": "../x"}, {}, "alignment must be 1 to 64 letters"),
        ({}, {"id-column": ""}, "an alignment needs an id for each row"),
    ],
)
def test_what_a_party_refuses(config, node, rule, folder):
    with pytest.raises(PartyError, match=rule):
        FileGrid(folder, TRAIN | config, **node).load(0)


def test_settings_that_do_not_fit():
    with pytest.raises(ValueError, match="alignment must be empty where parties hold"):
        party_source({}, {"strategy": "mufc", "alignment": "q4"})
    source = party_source({}, {"strategy": "coreset-vrlr", "alignment": "q4"})
    with pytest.raises(PartyError, match="this data set has no ids"):
        client_app.load_party(source)
    assert party_source({}, ALIGN).alignment is None
    strategy = make_strategy(check_run_config(ALIGN | {"align.method": "keyed"}))
    assert (strategy.alignment, strategy.method) == ("2026-q4", "keyed")


def test_parties_in_memory():
    """The same by hand: what the result says of each party's rows."""
    rng = np.random.default_rng(0)
    X, lists = rng.normal(size=(40, 6)), [np.r_[0:30], np.r_[35:5:-1], np.r_[10:40]]
    federation = [
        Party(
            X[rows, 2 * j : 2 * j + 2],
            X[rows].sum(axis=1) if j == 2 else None,
            ids=rows,
            name=NAMES[j],
        )
        for j, rows in enumerate(lists)
    ]
    model = vf.simulate(Alignment("q4"), federation).model
    taken = [p.take(rows) for p, rows in zip(federation, model.rows_, strict=True)]
    assert len({party.ids_digest for party in taken}) == 1
    for party, own, rows in zip(taken, federation, model.rows_, strict=True):
        np.testing.assert_array_equal(party.X, own.X[rows])
        assert (party.name, party.cache is own.cache) == (own.name, False)
    result = vf.simulate(CoresetVRLR(sampling="full", solver="central"), taken)
    np.testing.assert_allclose(
        np.concatenate(result.model.coef_), np.ones(6), atol=1e-6
    )
