"""Party files with other rows each are aligned, and later runs use the order."""

import functools
import logging
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from supernodes import SuperNodes

import vfl_flower as vf
from vfl_flower import Alignment, FederationError, Party, PartyFailed
from vfl_flower.app.client_app import load_from_context, load_party
from vfl_flower.app.config import check_run_config, make_strategy, party_source
from vfl_flower.clients import alignment as client
from vfl_flower.party.party import PartyError
from vfl_flower.party.row_order import accept_order, load_order, read_order, save_order

N = 60
COMMON = [k for k in range(N) if k % 11 and k % 12 and k % 13]
X = np.random.default_rng(3).normal(size=(N, 6))
BETA = np.arange(1.0, 7.0)


def write(folder: Path, j: int, order, drop=()) -> Path:
    (folder / "files").mkdir(exist_ok=True)
    y = X @ BETA + 2
    lines = [f"id,a,b{',y' if j == 2 else ''}"]
    for k in order:
        if k % (11 + j) and k not in drop:
            values = [f"r{k}", *X[k, 2 * j : 2 * j + 2], *([y[k]] if j == 2 else [])]
            lines.append(",".join(map(str, values)))
    path = folder / "files" / f"{j}.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


LEAVES = ["rows", "totals", "coefficients", "row-sums", "predictions", "moments"]
CONSENT = "\n".join(["[leaves]", *(f"{kind} = true" for kind in LEAVES)])


def nodes(folder: Path, config, **node) -> SuperNodes:
    grid = SuperNodes(folder / "files", CONSENT, node, **config)
    list(grid._contexts.values())[2].node_config["label-column"] = "y"
    return grid


def load(folder: Path, j: int, config=None, **node) -> Party:
    grid = nodes(folder, TRAIN if config is None else config, **node)
    return load_from_context(list(grid._contexts.values())[j])


def run(folder: Path, config):
    return make_strategy(check_run_config(config)).start(nodes(folder, config))


ALIGN = {"strategy": "align", "alignment": "2026-q4"}
TRAIN = {"strategy": "coreset-vrlr", "coreset-vrlr.sampling": "full"}
TRAIN |= {"alignment": "2026-q4"}


@pytest.fixture(scope="module")
def aligned(tmp_path_factory) -> Path:
    folder, rng = tmp_path_factory.mktemp("aligned"), np.random.default_rng(1)
    for j in range(3):
        write(folder, j, rng.permutation(N).tolist())
    assert run(folder, ALIGN).metrics == {"common": len(COMMON)}
    for j in range(3):
        accept_order(folder / f"state-{j}", "2026-q4")
    return folder


@pytest.fixture
def folder(aligned, tmp_path) -> Path:
    return shutil.copytree(aligned, tmp_path, dirs_exist_ok=True)


def ids_of(folder, j, config=TRAIN, **node):
    return list(load(folder, j, config, **node).read_ids())


def test_a_later_run_has_the_common_rows_in_one_order(folder):
    loaded = [load(folder, j) for j in range(3)]
    ids = [list(party.read_ids()) for party in loaded]
    assert ids[0] == ids[1] == ids[2]
    assert sorted(ids[0]) == sorted(f"r{k}" for k in COMMON)
    rows = [int(text[1:]) for text in ids[0]]
    np.testing.assert_allclose(np.hstack([p.X for p in loaded]), X[rows])
    np.testing.assert_allclose(loaded[2].y, X[rows] @ BETA + 2)
    # The server compares a digest that tells nothing of ids.
    assert {party.ids_digest for party in loaded} == {loaded[0].ids_digest}
    assert loaded[0].ids_digest.startswith("alignment 2026-q4 ")
    result = run(folder, TRAIN)
    np.testing.assert_allclose(np.concatenate(result.model.coef_), BETA, atol=1e-6)


def test_a_node_config_may_name_the_order(folder):
    named = {"alignment": "2026-q4"}
    run_config = TRAIN | {"alignment": ""}
    assert ids_of(folder, 0, run_config, **named) == ids_of(folder, 0)
    with pytest.raises(PartyError, match="alignment must be '2026-q4', as in this"):
        ids_of(folder, 0, TRAIN | {"alignment": "other"}, **named)
    # What makes the order takes all rows again.
    assert len(ids_of(folder, 0, ALIGN, **named)) > len(COMMON)


def test_a_changed_file_is_aligned_by_its_ids(folder, caplog):
    before = ids_of(folder, 1)
    write(folder, 1, range(N))
    caplog.set_level(logging.INFO)
    assert ids_of(folder, 1) == before
    rows = [int(text[1:]) for text in before]
    np.testing.assert_allclose(load(folder, 1).X, X[rows, 2:4])
    assert f"'p1': using {len(COMMON)} of its 55 rows, as in alignment" in caplog.text


def test_a_file_that_lacks_ids_is_refused(folder):
    write(folder, 1, range(N), drop=COMMON[:2])
    rule = rf"2 of the {len(COMMON)} ids of alignment '2026-q4' are missing from"
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
    assert caught.value.party == "p1"
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
    before, ids = load(folder, 0), ids_of(folder, 0)
    order = load_order(folder / "state-0", "2026-q4")
    (folder / "state-0" / "alignment-2026-q4.npz").unlink()
    save_order(folder / "state-0", replace(order, ids=order.ids[::-1]))
    accept_order(folder / "state-0", "2026-q4")
    after = load(folder, 0)
    assert list(after.read_ids()) == ids[::-1]
    np.testing.assert_array_equal(after.X, before.X[::-1])


def test_settings_that_do_not_fit():
    with pytest.raises(ValueError, match="alignment must be empty if parties hold"):
        party_source({}, {"strategy": "mufc", "alignment": "q4"})
    source = party_source({}, {"strategy": "coreset-vrlr", "alignment": "q4"})
    with pytest.raises(PartyError, match="this data set has no ids"):
        load_party(source)
    assert party_source({}, ALIGN).alignment is None
    strategy = make_strategy(check_run_config(ALIGN | {"align.method": "keyed"}))
    assert (strategy.alignment, strategy.method) == ("2026-q4", "keyed")


def test_parties_in_memory():
    """The same by hand: what the result says of each party's rows."""
    lists = [np.r_[0:30], np.r_[35:5:-1], np.r_[10:40]]
    federation = [
        Party(X[rows, 2 * j : 2 * j + 2], ids=rows, name=f"p{j}")
        for j, rows in enumerate(lists)
    ]
    model = vf.simulate(Alignment("q4"), federation).model
    taken = [p.take(rows) for p, rows in zip(federation, model.rows_, strict=True)]
    assert len({party.ids_digest for party in taken}) == 1
    for party, whole, rows in zip(taken, federation, model.rows_, strict=True):
        np.testing.assert_array_equal(party.X, whole.X[rows])
        assert (party.name, party.cache is whole.cache) == (whole.name, False)
