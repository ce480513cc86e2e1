"""A step is a plain function, and what the server asks for."""

import inspect
import pickle
from itertools import combinations
from typing import Annotated, TypedDict

import numpy as np
import pytest
from transcripts import leaving, our_steps

from vfl_flower import Party
from vfl_flower.party.answering import hello
from vfl_flower.protocol import steps
from vfl_flower.protocol.contract import IN_SUM, SEALED, Reals
from vfl_flower.protocol.steps import STEPS, Step, Sum, step_of
from vfl_flower.strategies import algorithms
from vfl_flower.typing import Array


class Totals(TypedDict):
    """Reply of `column_total`."""

    total: Annotated[Array, Reals("1"), IN_SUM]
    parts: Annotated[dict[int, Array], Reals("1"), SEALED]


def _column_total(party: Party, column: int = 0) -> Totals:
    """Add a column up."""
    return {"total": party.X[:, column].sum(keepdims=True), "parts": {}}


column_total = Step(_column_total, "column_total")


def test_a_step_is_registered_and_stays_a_plain_function(monkeypatch):
    monkeypatch.setattr(steps, "STEPS", registry := {})
    declared = step_of("example")(_column_total)
    assert registry == {"example__column_total": declared}
    assert (declared.action, declared.algorithm) == ("example__column_total", "example")
    party = Party(np.arange(6.0).reshape(3, 2))
    assert declared(party, column=1)["total"].tolist() == [9.0]
    assert declared(party)["total"].tolist() == [6.0]
    assert declared.__doc__ == "Add a column up."
    assert declared.__name__ == "_column_total"
    with pytest.raises(ValueError, match="'example__column_total' already has a step"):
        step_of("example")(_column_total)


def test_sums_that_are_asked_for():
    question = column_total.summing(total=3.0, parts=Sum(1.0, "circle16", to=1))
    assert question.step is column_total
    assert question.sums == {"total": Sum(3.0), "parts": Sum(1.0, "circle16", to=1)}
    assert column_total.step is column_total
    assert column_total.sums == {}


ALGORITHMS = {
    *("alignment", "coreset_predictions", "coresets", "fdskl", "kernel_kmeans"),
    *("linear", "linear_gram", "mufc", "products", "removal", "ridge"),
}


def test_an_action_is_an_algorithm_and_a_function_of_a_party():
    assert {step.algorithm for step in our_steps().values()} == ALGORITHMS
    for action, declared in our_steps().items():
        (first, *_) = inspect.signature(declared.function).parameters.values()
        assert first.annotation in (Party, "Party")
        assert action == f"{declared.algorithm}_{declared.__name__}"
        assert action.isidentifier()
        assert STEPS[action] is declared
    assert len(our_steps()) > 15


@pytest.mark.parametrize("declared", [hello, *our_steps().values()], ids=repr)
def test_a_step_is_pickled_by_its_place(declared):
    """Ray sends a ClientApp to its actors."""
    assert pickle.loads(pickle.dumps(declared)) is declared


def test_what_leaves_a_party_in_a_sum():
    """Steps of other modules are in the tests of their clients."""
    names = {"coresets_totals": set(), "coresets_scores": {"scores"}}
    names["linear_cg"] = {"direction", "energies"}
    names["linear_coefficients"] = {"shift"}
    assert {action: leaving(our_steps()[action], "sum") for action in names} == names


def test_no_two_steps_of_a_run_have_one_private_name():
    """What a party is sent under a name could else be opened as what another step sent.

    Keys depend on the step as well; a strategy that mixes two up fails, and reads none.
    """
    shared, seen = [], set()
    for strategy in {kind for kinds in algorithms().values() for kind in kinds}:
        for one, other in combinations(strategy.steps, 2):
            names = leaving(one, "private") & leaving(other, "private")
            seen |= leaving(one, "private")
            if names:
                shared.append((strategy.__name__, one.action, other.action, names))
    assert shared == []
    assert {"openings", "share", "delivered"} <= seen
