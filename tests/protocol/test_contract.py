"""The declaration of a step says what its messages may hold."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired, TypedDict, TypeVar

import numpy as np
import pytest
from annotated_types import Ge, Le, Lt, MaxLen, MinLen
from numpy.typing import NDArray
from pydantic import PositiveInt
from transcripts import our_steps
from typing_extensions import TypeAliasType

from vfl_flower import Party
from vfl_flower.protocol.contract import (
    IN_SUM,
    OWN,
    SEALED,
    SECRET,
    Contract,
    ContractError,
    Reals,
    Whole,
    check_shape,
    declared_as,
    fields_of,
    flatten,
    learn_sizes,
    parse,
    restore,
    structure,
)
from vfl_flower.protocol.seals import Seal, Sealed
from vfl_flower.typing import Array


@dataclass(frozen=True)
class Clustering:
    k: Annotated[int, Ge(1)]
    method: Literal["lloyd", "seeding"] = "lloyd"
    weights: Annotated[Array, Reals("m")] | None = None

    def __post_init__(self) -> None:
        if self.k > 100:
            raise ContractError("'k' must be at most 100")


class Reply(TypedDict):
    rows: Annotated[Array, Whole("size", below="n_rows")]
    total: Annotated[Array, Reals("m"), IN_SUM]
    angles: NotRequired[Annotated[dict[int, Array], Reals("m *"), SEALED]]


class Partial(TypedDict, total=False):
    n: int


def step(
    party: Party,
    size: Annotated[int, Ge(0), Lt(9)],
    share: float = 0.5,
    m: int = 4,
    names: list[str] | None = None,
    clustering: Clustering | None = None,
    X: Annotated[Array, Reals("m n_columns"), MinLen(1)] | None = None,
    blocks: Annotated[dict[int, Array], Whole("*", least=-1, below="size")]
    | None = None,
    key: Annotated[bytes | None, SECRET] = None,
) -> Reply:
    raise NotImplementedError


REQUEST = Contract.of(step).request
SIZES = {"n_rows": 5, "n_columns": 2, "n_parties": 3}


def bind(**values: Any) -> dict[str, Any]:
    return structure(REQUEST, values, dict(SIZES))


# -- declarations ----------------------------------------------------------------------


def test_what_a_step_declares():
    contract = Contract.of(step)
    assert [n for n, f in contract.request.items() if f.required] == ["size"]
    assert contract.request["m"].default == 4
    assert contract.request["key"].leaves == SECRET
    assert contract.request["blocks"].kind is dict
    assert contract.reply["total"].leaves == IN_SUM
    assert contract.reply["rows"].leaves is None
    assert not contract.reply["angles"].required
    assert not fields_of(Partial)["n"].required


@dataclass(frozen=True)
class Summed:
    rows: Annotated[Array, Whole("*")]
    total: Annotated[Array, Reals("*"), SEALED]


class Outer(TypedDict):
    at: Annotated[Summed, OWN]


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        (fields_of(Reply), {"angles_3": SEALED, "angles": SEALED, "rows": None}),
        (fields_of(Reply), {"total": IN_SUM}),
        (fields_of(Outer), {"at.rows": None, "at.total": SEALED, "at": None}),
    ],
)
def test_what_is_declared_of_a_name(fields, names):
    for name, leaves in names.items():
        declared = declared_as(fields, name)
        assert declared is not None
        assert declared.leaves == leaves
    undeclared = ["angle_3", "total_3", "x", "_3", "", "rows.0"]
    undeclared += ["at.x", "at.total.0", "x.total", "at.", ".at"]
    assert not any(declared_as(fields, name) for name in undeclared)


@pytest.mark.parametrize(
    "annotation",
    [
        *(dict[str, int], dict[int, float], Mapping[str, Any], int | Array, object),
        *(Any, Party | int, Annotated[Array, Reals("*"), Le(5)]),
        *(Annotated[dict[int, Array], "blocks"], Annotated[Clustering, Le(5)]),
    ],
)
def test_an_annotation_without_a_meaning(annotation):
    with pytest.raises(TypeError, match=r"must not be of type|is not a rule for"):
        parse(annotation)


def test_a_type_statement_stands_for_its_type():
    """As NumPy's NDArray is one from 2.5 on, on Python 3.12 or newer."""
    number = TypeVar("number", bound=np.generic)
    plain = TypeAliasType("plain", np.ndarray[Any, np.dtype[np.float64]])
    made = np.ndarray[Any, np.dtype[number]]
    generic = TypeAliasType("generic", made, type_params=(number,))
    expected = parse(Annotated[Array, Reals("m")])
    for alias in (plain, generic[np.float64], NDArray[Any]):
        assert parse(Annotated[alias, Reals("m")]) == expected
    assert parse(TypeAliasType("whole", int)) == parse(int)


PLAIN = (object, np.ndarray, dict)


@pytest.mark.parametrize("action", our_steps())
def test_arrays_have_shapes_and_known_sizes_bound_numbers(action):
    contract = our_steps()[action].contract
    fields = [*contract.request.items(), *contract.reply.items()]
    known = set(SIZES) | {name for name, _ in fields}
    for name, declared in fields:
        assert declared.array or declared.kind not in (np.ndarray, dict), name
        known |= set(fields_of(declared.kind)) if declared.kind not in PLAIN else set()
        known |= set(declared.array.shape.split()) if declared.array else set()
    for name, declared in fields:
        below = getattr(declared.array, "below", None)
        assert not isinstance(below, str) or below in known, name


# -- flat names and structured values --------------------------------------------------


def test_values_travel_under_flat_names():
    sealed = Sealed(1, (np.ones(2),), (Seal("pad", "a", "x", 1, bound=1.0),))
    values = {
        "none": None,
        "size": 3,
        "pair": (1, 2),
        "clustering": Clustering(3, weights=np.ones(2)),
        "blocks": {0: np.ones(1), 12: np.zeros(1)},
        "sealed": sealed,
        "more": {2: sealed},
    }
    flat = flatten(values)
    assert list(flat) == [
        *("size", "pair", "clustering.k", "clustering.method", "clustering.weights"),
        *("blocks_0", "blocks_12", "sealed", "more_2"),
    ]
    assert flat["pair"] == [1, 2]
    assert flat["sealed"] is flat["more_2"] is sealed


def test_values_come_back_as_they_were():
    values = {
        "size": 3,
        "names": ["a", "b"],
        "clustering": Clustering(3, "seeding"),
        "blocks": {12: np.array([-1, 2]), 0: np.array([0])},
    }
    bound = bind(**flatten(values))
    assert list(bound["blocks"]) == [0, 12]
    np.testing.assert_equal(bound, values)


@pytest.mark.parametrize("kind", [int, PositiveInt])
def test_types_of_pydantic_are_checked(kind):
    fields = {"n": parse(kind)}
    assert structure(fields, {"n": 1}, {}) == {"n": 1}
    with pytest.raises(ContractError, match=r"^'n' must be a whole number"):
        structure(fields, {"n": 0.5}, {})
    assert type(bind(size=1, share=1)["share"]) is float  # as declared


@dataclass
class Kept:
    n: int
    share: float = 1.0
    rows: Array | None = None
    clustering: Clustering | None = None


def test_what_stayed_on_the_machine_is_taken_as_it_is():
    kept = restore(Kept, {"n": 1, "share": 2, "clustering.k": 3})
    assert (kept.n, kept.share, kept.rows) == (1, 2, None)
    assert kept.clustering == Clustering(3)


# -- requests that are none ------------------------------------------------------------

MARK = 271828


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, ("'size' is missing",)),
        ({"size": MARK}, ("'size'", "at least 0", "below 9")),
        ({"size": True}, ("'size'", "whole number")),
        ({"size": 2.0}, ("'size'", "whole number")),
        ({"share": float("nan")}, ("'share'", "number")),
        ({"share": float("inf")}, ("'share'", "number")),
        ({"share": True}, ("'share'", "number")),
        ({"share": f"{MARK}"}, ("'share'", "number")),
        ({"names": "ab"}, ("'names'", "a list of text")),
        ({"names": [f"{MARK}", 1]}, ("'names'", "a list of text")),
        ({"clustering": 3}, ("'clustering'",)),
        ({"clustering.k": 0}, ("clustering: 'k'", "at least 1")),
        ({"clustering.k": 101}, ("clustering: 'k'", "at most 100")),
        ({"clustering.method": "lloyd"}, ("clustering: 'k' is missing",)),
        ({"clustering.k": 1, "clustering.method": "x"}, ("'method'", "'lloyd'")),
        ({"clustering.k": 1, "clustering.x": 1}, ("clustering: 'x'",)),
        ({"X": 3.0}, ("'X'", "an array")),
        ({"X": np.ones((4, 3))}, ("'X'", "(4, 2)", "got (4, 3)")),
        ({"X": np.ones(4)}, ("'X'", "(4, 2)", "got (4)")),
        ({"X": np.array(1.0)}, ("'X'", "(4, 2)", "got ()")),
        ({"X": np.full((4, 2), np.nan)}, ("'X'", "finite")),
        ({"X": np.ones((4, 2), complex)}, ("'X'", "real", "complex128")),
        ({"X": np.full((4, 2), "2001-01-01", "M8[D]")}, ("'X'", "real")),
        ({"X": np.ones((0, 2)), "m": 0}, ("'X'", "length 1 or more")),
        ({"blocks_0": np.array([-2])}, ("'blocks_0'", "at least -1")),
        ({"blocks_0": np.array([1])}, ("'blocks_0'", "below 1")),
        ({"blocks_0": np.array([1.0])}, ("'blocks_0'", "whole numbers")),
        ({"blocks_0": np.ones((1, 1), int)}, ("'blocks_0'", "got (1, 1)")),
        ({"blocks": np.array([0])}, ("'blocks'",)),
        ({"blocks_-1": np.array([0])}, ("'blocks_-1'",)),
        ({"blocks_01": np.array([0])}, ("'blocks_01'",)),
        ({"blocks_\u0663": np.array([0])}, ("'blocks_",)),
        ({"blocks_" + "9" * 9999: np.array([0])}, ("'blocks_9",)),
        ({"key": "text"}, ("'key'", "bytes")),
        ({"weather" * 99: 5}, ("'weather",)),
        ({"": 5}, ("''",)),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_request_that_is_none_names_the_value_and_the_rule(values, words):
    with pytest.raises(ContractError) as caught:
        bind(**({"size": 1} | values if values else {}))
    sentence = str(caught.value)
    for word in words:
        assert word in sentence
    assert len(sentence) < 200
    assert f"{MARK}" not in sentence  # nor any other value


# -- sizes -----------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "fits"), [(-2.0, True), (3, True), (3.1, False)])
def test_real_numbers_are_within_their_limits(value, fits):
    fields = {"X": parse(Annotated[Array, Reals("*", -2, 3)])}
    values = {"X": np.array([0, value])}
    if fits:
        assert structure(fields, values, {})["X"] is values["X"]
    else:
        with pytest.raises(ContractError, match="'X' must hold numbers from -2 to 3"):
            structure(fields, values, {})


def test_numbers_of_a_request_are_known_before_its_arrays():
    """`m` is declared after `X`, whose first size it gives."""
    fields = {"X": parse(Annotated[Array, Reals("m")]), "m": parse(int)}
    with pytest.raises(ContractError, match=r"'X' must have shape \(3\), got \(2\)"):
        structure(fields, {"X": np.ones(2), "m": 3}, {})
    structure(fields, {"X": np.ones(3), "m": 3}, {})
    with pytest.raises(ContractError, match=r"\(4, 2\), got \(5, 2\)"):
        bind(size=1, X=np.ones((5, 2)))  # its default is 4
    bind(size=1, X=np.ones((5, 2)), m=5)


def test_a_name_stands_for_one_size():
    fields = {n: parse(Annotated[Array, Reals("k *")]) for n in ("a", "b")}
    sizes: dict[str, int] = {}
    structure(fields, {"a": np.ones((2, 3)), "b": np.ones((2, 9))}, sizes)
    assert sizes == {"k": 2}
    with pytest.raises(ContractError, match=r"'b' must have shape \(2, \*\), got \(3"):
        structure(fields, {"a": np.ones((2, 3)), "b": np.ones((3, 3))}, {})


@pytest.mark.parametrize(
    ("shape", "fits", "other"),
    [
        *(("", (), (1,)), ("3", (3,), (4,)), ("k k", (2, 2), (2, 3))),
        *(("* *", (2, 3), (2,)), ("n_rows", (5,), (0,))),
    ],
)
def test_shapes(shape, fits, other):
    check_shape("x", shape, fits, dict(SIZES))
    with pytest.raises(ContractError, match="'x' must have shape"):
        check_shape("x", shape, other, dict(SIZES))


def test_the_server_knows_the_sizes_of_its_request():
    sizes = dict(SIZES)
    values = {
        "size": np.int64(3),
        "clustering": Clustering(7, weights=np.ones(6)),
        "X": Sealed(0, (), ()),
        "blocks": {0: np.ones(2), 1: Sealed(0, (), ())},
    }
    request = Contract.of(step).request
    with pytest.raises(ContractError, match="'weights'"):  # m is 4 where it is not told
        learn_sizes(request, values, dict(SIZES))
    learn_sizes(request, values | {"m": 6}, sizes)
    assert sizes == SIZES | {"size": 3, "k": 7, "m": 6}


@pytest.mark.parametrize(("size", "rule"), [(1, "2 or more"), (4, "3 or less")])
def test_lengths(size, rule):
    fields = {"x": parse(Annotated[Array, Reals("*"), MinLen(2), MaxLen(3)])}
    structure(fields, {"x": np.ones(2)}, {})
    structure(fields, {"x": np.ones(3)}, {})
    with pytest.raises(ContractError, match=f"'x' must have length {rule}"):
        structure(fields, {"x": np.ones(size)}, {})


@dataclass(frozen=True)
class Inner:
    key: Annotated[Array, Whole("*", 0, 256), SEALED]


class InReply(TypedDict):
    inner: Inner


def sends_inside(party: Party) -> InReply:
    raise NotImplementedError


def takes_two_of_a_name(party: Party, first: Inner, second: Inner) -> Reply:
    raise NotImplementedError


@dataclass(frozen=True)
class Outer:
    inner: Inner


def takes_two_of_a_stem(
    party: Party,
    x1: Annotated[Array, Whole("*", 0, 256), SEALED],
    x_2: Annotated[Array, Whole("*", 0, 256), SEALED],
) -> Reply:
    raise NotImplementedError


def takes_one_further_inside(party: Party, first: Inner, second: Outer) -> Reply:
    raise NotImplementedError


@pytest.mark.parametrize(
    "function",
    [sends_inside, takes_two_of_a_name, takes_two_of_a_stem, takes_one_further_inside],
)
def test_a_seal_must_tell_fields_of_structures_apart(function):
    """It has the last part of a name: the server could exchange two values."""
    with pytest.raises(TypeError, match="belong to a request and have distinct names"):
        Contract.of(function)
