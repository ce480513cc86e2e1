"""Over which rows each step adds up, and what protects a single row."""

import ast
import inspect
import sys
from contextlib import nullcontext
from typing import get_args

import numpy as np
import pytest
from deviating import RealParties
from federations import by_columns, pinned
from supernodes import SuperNodes, write_rows
from transcripts import our_steps

from vfl_flower import MUFC, Alignment, PartyFailed
from vfl_flower.clients import alignment
from vfl_flower.clients.coresets import gram as linear_gram
from vfl_flower.clients.coresets.sampling import WeightedRows
from vfl_flower.clients.kernel_kmeans import training as kernel_kmeans
from vfl_flower.party.consent import Consent, Limit
from vfl_flower.protocol.steps import Sum, SumRows, each
from vfl_flower.secure_aggregation.limbs import LIMB, join_limbs
from vfl_flower.secure_aggregation.products.roles import Roles
from vfl_flower.server.exchange import Exchange
from vfl_flower.server.parties import Parties

STEPS = our_steps()


def calls(function: object) -> set[str]:
    """Return the names that a function calls, also by functions of its module."""
    module = ast.parse(inspect.getsource(sys.modules[function.__module__]))
    bodies = {n.name: n for n in module.body if isinstance(n, ast.FunctionDef)}
    found, left = set(), [function.__name__]
    while left:
        body = bodies.get(left.pop())
        for node in ast.walk(body) if body is not None else ():
            if isinstance(node, ast.Call):
                target = node.func
                name = getattr(target, "attr", getattr(target, "id", ""))
                if name not in found:
                    found.add(name)
                    left.append(name)
    return found


@pytest.mark.parametrize("action", STEPS)
def test_each_step_says_over_which_rows_it_adds_up(action):
    step = STEPS[action]
    assert "sums_over" in vars(step.function), "without an answer of its own"
    assert step.rows in get_args(SumRows)
    assert ("sum_over" in calls(step.function)) == (step.rows in ("request", "party"))
    if step.rows == "none" and step.reveals:
        assert step.why, "what hides a single row?"


WITHOUT_KIND = {
    "alignment_keep_order": "it sends no sum: its rows are those of later runs",
    "kernel_kmeans_project": "in one process alone",
    "ridge_scores": "after ridge_rows, which asks for moments",
}
"""Steps that add up rows and ask for no kind themselves, and what comes before them."""


def test_with_an_empty_consent_no_step_adds_up_rows():
    """The server may choose what is summed, too."""
    without = {
        action
        for action, step in STEPS.items()
        if step.rows in ("session", "request", "party")
        and all(reveal.optional for reveal in step.reveals)
    }
    assert without == set(WITHOUT_KIND)


# -- attacks that succeeded, on real parties -------------------------------------------

N, WIDTH, VICTIM = 60, 2, 1


class Federation:
    """Three parties with files, and a server that asks what it likes of sums."""

    def __init__(self, folder, *kinds, y=None, **rules):
        ids = np.array([f"r{i}" for i in range(N)])
        leaves = dict.fromkeys(("row-sums", *kinds), Limit())
        X = np.random.default_rng(0).normal(size=(N, 3 * WIDTH))
        parties = by_columns(X, y, names=[*"abc"], ids=ids)
        self.parties = pinned(parties, folder, Consent(leaves=leaves, **rules))

    def take(self, rows_of_victim):
        """Let the victim's session have some of its rows, as an order would."""
        made = self.parties[VICTIM].take(np.asarray(rows_of_victim))
        made.ids_digest = self.parties[0].ids_digest  # the server compares nothing
        made.order_key = f"order {sorted(rows_of_victim)}"
        return [self.parties[0], made, self.parties[2]]

    def greet(self, parties=None, **more):
        """Begin a session of a new run."""
        grid = RealParties(parties or self.parties)
        return Parties(Exchange(grid), partition="horizontal", **more)


def column_sums(asked):
    sums = asked.ask(kernel_kmeans.begin.summing(sum_x=Sum(LIMB)), means=True).sums
    return join_limbs(sums["sum_x"])


def test_two_orders_that_differ_by_a_row_do_not_reveal_it(tmp_path):
    """The difference was the row, to 8e-14."""
    federation = Federation(tmp_path)
    column_sums(federation.greet())
    with pytest.raises(PartyFailed, match="refuses to add up the rows"):
        column_sums(federation.greet(federation.take(np.arange(1, N))))
    column_sums(federation.greet(federation.take(np.arange(20, N))))


def test_a_session_of_few_rows_has_no_sums(tmp_path):
    federation = Federation(tmp_path)
    with pytest.raises(PartyFailed, match="refuses to add up the rows"):
        column_sums(federation.greet(federation.take(np.arange(19))))


def test_a_sum_without_a_party_does_not_reveal_its_part(tmp_path):
    federation = Federation(tmp_path, two_parties=True)
    column_sums(federation.greet())
    with pytest.raises(PartyFailed, match="refuses to add up the rows"):
        column_sums(federation.greet(federation.parties[:2]))


def test_weights_of_the_server_do_not_isolate_a_row(tmp_path):
    """Equal rows with another weight of one row, in the sums of products of columns."""
    y = np.random.default_rng(1).normal(size=N)
    federation = Federation(tmp_path, "moments", "coefficients", y=y)
    rows, weights = np.arange(N), np.ones(N)
    roles = Roles(first=2, second=0, owners=[WIDTH, WIDTH, WIDTH + 1], rows=N)

    def ask(weights):
        """Ask all parties, which the dealer has given nothing yet."""
        values = {"n": N, "intercept": True, "test_fraction": 0.0}
        values |= {"coreset": WeightedRows(rows.astype(np.uint32), weights)}
        values |= {"dealt": each([np.zeros(0, np.uint8)] * 3)}
        step, counted = linear_gram.columns, roles.columns
        federation.greet().ask(step, roles=roles, counted=counted, **values)

    column_sums(federation.greet())  # of all rows, each with weight 1
    with pytest.raises(PartyFailed, match="seed must have 32 bytes"):
        ask(weights)  # the guard lets these pass
    weights[7] = 2.0
    with pytest.raises(PartyFailed, match="refuses to add up the rows"):
        ask(weights)


def test_steps_of_two_strategies_do_not_mix_in_a_session(tmp_path):
    asked = Federation(tmp_path).greet()
    column_sums(asked)
    with pytest.raises(PartyFailed, match="to the same strategy and task"):
        asked.ask(alignment.encrypt_ids, sizes=[N] * 3)


# -- orders of rows, and files ---------------------------------------------------------


def nodes_of(folder, rules, last=45, gaps=0, **run):
    """Return nodes of 45 rows; the third has the first `last`, and the first gaps."""
    (folder / "files").mkdir(exist_ok=True)
    for m, n in enumerate((45, 45, last)):
        rows = [[f"r{i}", "" if i < gaps and m == 0 else f"{i}.5"] for i in range(n)]
        write_rows(folder / "files" / f"{m}.csv", ["id", f"x{m}"], *rows)
    rules = f'accept-alignments = ["server"]\n{rules}'
    return SuperNodes(folder / "files", rules, {}, **run)


def test_orders_that_the_server_accepts_differ_by_many_rows(tmp_path):
    """What a run greets with is of the rows of its order, such as how many levels."""
    for name, last in (("first", 45), ("again", 45), ("fewer", 25)):
        nodes = nodes_of(tmp_path, "", last, strategy="align")
        assert Alignment(name).start(nodes).metrics["common"] == last
    nodes = nodes_of(tmp_path, "", 44, strategy="align")
    with pytest.raises(PartyFailed, match="refuses to add up the rows requested"):
        Alignment("less").start(nodes)


@pytest.mark.parametrize("most", [3, 4])
def test_a_refused_order_is_not_kept(most, tmp_path):
    """The fourth message asks for it."""
    nodes = nodes_of(tmp_path, f"max-round-trips = {most}\n", strategy="align")
    rule = pytest.raises(PartyFailed, match="at most 3 messages in a")
    with rule if most == 3 else nullcontext():
        Alignment("q4").start(nodes)
    kept = sorted(file.suffix for file in tmp_path.glob("state-0/alignment-q4.*"))
    assert kept == ([".accepted", ".npz"] if most == 4 else [])


def test_refusals_of_a_file_are_counted(tmp_path):
    """They may say how many values are missing; the server chooses what is read."""
    nodes = nodes_of(tmp_path, "max-refusals = 3\n", gaps=5, strategy="mufc")
    for rule in [*["missing values"] * 3, "has refused 3 messages and will answer no"]:
        with pytest.raises(PartyFailed, match=rule):
            MUFC(2).start(nodes)
