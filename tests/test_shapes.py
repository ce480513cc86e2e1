"""No ``repr`` of a class that holds data, keys or state shows any of them."""

import dataclasses
import importlib
import inspect
import pkgutil
from functools import cache

import numpy as np
import pytest

import vfl_flower
from vfl_flower import Party

MARK = 918273645
MARKS = (
    np.full((2, 3), MARK),
    float(MARK),
    f"a {MARK}",
    b"%d" % MARK,
    [f"{MARK}"],
    {f"{MARK}": MARK},
)

PUBLIC = {
    "data": "Packing CacheEntry Checked Plan Finding PartySource Layout",
    "models": "LinearModel PartedModel KernelModel RidgeModel RemovedModel UsedModel",
    "numerics": "Block Loss Penalty Box Quantizer PrimeField",
    "clients": "Clustering Setup AngleRequest MoreAngles Problem Rule Task Joint "
    "Evaluated TrainingSettings",
    "protocol": "Computing Terms Reals Whole Many Leaves Sending Field Contract "
    "SumRequest Seal Setting Sum Reveals",
    "party": "Limit _Rules Consent Credential Rows",
    "server": "Entry Seen Ledger Metric PartyInfo ProtocolResult ProtocolStrategy",
    "secure_aggregation": "FixedPoint _Bounded Ring Circle Plain Field Deal Tree Roles",
    "simulation": "SimulatedResult",
}
"""Classes that hold neither data nor keys nor state: settings, declarations, what the
server asks for, counts, and coefficients of models. A result is Flower's own."""

SETTINGS = ("app", "sklearn", "strategies")
"""Layers whose classes have settings alone, and what a command prints."""


@cache
def holders():
    """Return the classes of the package with fields, but for those that are public."""
    found = {}
    for info in pkgutil.walk_packages(vfl_flower.__path__, "vfl_flower."):
        module = importlib.import_module(info.name)
        layer = info.name.split(".")[1]
        for cls in vars(module).values():
            ours = inspect.isclass(cls) and cls.__module__ == info.name
            fields = ours and (dataclasses.is_dataclass(cls) or hasattr(cls, "_fields"))
            generated = ours and cls.__repr__ is not object.__repr__
            hidden = ours and cls.__name__ not in PUBLIC.get(layer, "").split()
            if fields and generated and hidden and layer not in SETTINGS:
                found[f"{info.name}.{cls.__name__}"] = cls
    return found


@pytest.mark.parametrize("name", holders())
def test_no_field_is_in_a_repr(name):
    cls = holders()[name]
    if cls is Party:
        return
    names = getattr(cls, "_fields", None) or [f.name for f in dataclasses.fields(cls)]
    for mark in MARKS:
        if issubclass(cls, tuple):
            instance = cls(*[mark] * len(names))
        else:
            instance = object.__new__(cls)
            for field in names:
                object.__setattr__(instance, field, mark)
        assert str(MARK) not in repr(instance)


def test_a_party_shows_its_name_and_sizes():
    X, ids = np.full((3, 2), MARK), [f"{MARK + k}" for k in range(3)]
    party = Party(X, y=X[:, 0], ids=np.array(ids), name="airline")
    assert repr(party) == "Party('airline': 3 rows, 2 columns, 3 labels, ids)"
    assert repr(Party(X)) == "Party(3 rows, 2 columns)"
