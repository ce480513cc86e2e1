"""Bounds of MUFC by the names of columns, and text that counts less."""

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from vfl_flower import MUFC, Party, simulate
from vfl_flower.server.exchange import FederationError

COLUMNS = [
    {"name": "sex", "levels": ["f", "m"]},
    *({"name": name, "levels": None} for name in ("age", "weight", "pulse")),
    {"name": "region", "levels": ["east", "north", "south", "west"]},
]
BOX = "age=0,120;weight=20,200;*=30,200"


@pytest.fixture(scope="module")
def table():
    """Return three groups by numbers, with texts that have nothing to do with them."""
    rng = np.random.default_rng(0)
    group = rng.integers(3, size=900)
    numbers = np.array([[30, 60, 70], [70, 90, 60], [50, 75, 110]])[group]
    numbers = numbers + rng.normal(size=(900, 3)) * [6, 6, 5]
    sex = np.eye(2)[rng.integers(2, size=900)]
    region = np.eye(4)[rng.integers(4, size=900)]
    return np.column_stack([sex, numbers, region]), group


def parties(X):
    made = [Party(X[m::3], name=f"clinic-{m}") for m in range(3)]
    for party in made:
        party.encoding = {"columns": [dict(column) for column in COLUMNS]}
    return made


def clustered(table, box):
    """Return the adjusted Rand index of the clusters, and the warnings."""
    X, group = table
    result = simulate(MUFC(3, box=box), parties(X), seed=0)
    return adjusted_rand_score(group, result.model.predict(X)), result.warnings


def test_text_counts_less_where_the_box_names_columns(table):
    score, warnings = clustered(table, "0,1;0,1;0,120;20,200;30,200;0,1;0,1;0,1;0,1")
    assert score < 0.1
    assert any("of the spread between clusters" in warning for warning in warnings)
    for box in (BOX, {"pulse": (30, 200), "age": (0, 120), "weight": (20, 200)}):
        score, warnings = clustered(table, box)
        assert score > 0.9
        assert not warnings


def test_clusters_that_follow_one_column_name_it(table):
    score, (warning,) = clustered(table, BOX + ";sex=0,1")
    assert score < 0.5
    assert warning.startswith("'sex' makes up")


@pytest.mark.parametrize(
    ("box", "rule"),
    [
        ("agee=0,120;*=0,200", "none is named 'agee'"),
        ("age=0,120", "none for column 2 of 'clinic-0'"),
    ],
)
def test_names_that_the_columns_do_not_have(table, box, rule):
    with pytest.raises(FederationError, match=f"^box must .*{rule}"):
        simulate(MUFC(3, box=box), parties(table[0]))


@pytest.mark.parametrize("box", ["age=1", "age=5,5", "age=0,1;age=0,2", {"a": 3}])
def test_names_without_bounds(box):
    with pytest.raises(ValueError, match=r"^box must (be 'name=|name each column)"):
        MUFC(box=box)
