"""The table of algorithms, with those of other packages."""

from types import SimpleNamespace

import pytest

from vfl_flower import strategies


def found(monkeypatch, name, loaded):
    """Return the table where a package brings one algorithm."""
    entry = SimpleNamespace(name=name, load=lambda: loaded)
    groups = {"vfl_flower.algorithms": [entry]}
    monkeypatch.setattr(strategies, "entry_points", lambda group: groups[group])
    return strategies.algorithms.__wrapped__()


@pytest.mark.parametrize("loaded", ["strategy", ("strategy",)])
def test_another_package_brings_an_algorithm(monkeypatch, loaded):
    table = found(monkeypatch, "fifth", loaded)
    assert table == {**strategies.ALGORITHMS, "fifth": ("strategy",)}


def test_two_algorithms_of_one_name(monkeypatch):
    with pytest.raises(ValueError, match="two algorithms are called 'fdskl'"):
        found(monkeypatch, "fdskl", "strategy")


def test_every_use_of_a_step_is_in_the_table():
    uses = strategies.uses_of_steps()
    assert uses["removal_remove"] >= {("ridge", "remove"), ("fdskl", "remove")}
    assert uses["alignment_hash_with_key"] == {("align", "train")}
