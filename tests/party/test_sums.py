"""Sums that only one party may learn, in one round trip or from party to party."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypedDict

import numpy as np
import pytest
from consents import free
from faults import Fault, FaultyGrid
from flwr.app import Message
from flwr.common.serde import message_to_proto
from transcripts import Listening
from uniformity import octets, uniform

from vfl_flower import Party, PartyFailed
from vfl_flower.app.register import make_client_app
from vfl_flower.party.sums import PartySums
from vfl_flower.protocol.common import own_digest
from vfl_flower.protocol.contract import OWN, SEALED, SECRET, Reals, Whole, flatten
from vfl_flower.protocol.messages import digest_of_values, pack, unbundle, unpack
from vfl_flower.protocol.seals import Sealed
from vfl_flower.protocol.steps import STEPS, Step, Sum, each, opened
from vfl_flower.secure_aggregation.groups import group
from vfl_flower.secure_aggregation.keys import new_private_key, public_key
from vfl_flower.secure_aggregation.relay import Relay
from vfl_flower.secure_aggregation.trees import Tree, ring, spanning, two_trees
from vfl_flower.server.exchange import Exchange
from vfl_flower.server.parties import Parties
from vfl_flower.server.replies import Replies
from vfl_flower.simulation import InProcessGrid
from vfl_flower.typing import Array

FALSE_ALARM = 1e-9
"""Chance that one test of uniformity fails on uniform elements."""

GROUPS = ("ring", "circle16", "circle32", "plain")


def addend(party: int, name: str, size: int, bits: int) -> np.ndarray:
    """Return what a party adds: eighths, or elements of the circle of so many bits.

    Sums of eighths are exact in fixed point and in floats.
    """
    rng = np.random.default_rng([party, zlib.crc32(name.encode())])
    if bits:
        return rng.integers(2**bits, size=size, dtype=f"<u{bits // 8}")
    return rng.integers(-400, 400, size) / 8


def pooled(parties: Sequence[int], name: str, size: int, bits: int) -> np.ndarray:
    """Return the sum of the parties' addends, on the circle modulo a turn."""
    addends = [addend(j, name, size, bits) for j in parties]
    return np.sum(addends, axis=0, dtype=addends[0].dtype)


def bits_of(name: str) -> int:
    return int(name.removeprefix("circle")) if name.startswith("circle") else 0


Opened = Annotated[Array, Reals("*"), SEALED]
Secret = Annotated[bytes, SECRET]


class Part(TypedDict):
    part: Annotated[Array, Reals("size"), SEALED]


class Travelling(TypedDict, total=False):
    up: Annotated[dict[int, Array], Reals("*"), SEALED]
    down: Annotated[dict[int, Array], Reals("*"), SEALED]


class Seen(TypedDict, total=False):
    part: Annotated[Array, Reals("*")]
    parts: Annotated[dict[int, Array], Reals("*")]
    up: Annotated[dict[int, Array], Reals("*")]
    down: Annotated[dict[int, Array], Reals("*")]


class Chained(TypedDict, total=False):
    part: Annotated[Array, Reals("5"), SEALED]
    seen: Annotated[Array, Reals("5")]


@dataclass(frozen=True)
class Summed:
    rows: Annotated[Array, Whole("*")]
    part: Opened


class Told(TypedDict, total=False):
    key: Secret


class Heard(TypedDict, total=False):
    key: bytes


def _sealing(party: Party, size: int = 5, bits: int = 0, zero: bool = False) -> Part:
    part = addend(party.index, "part", size, bits)
    return {"part": part * 0 if zero else part}


def _relaying(
    party: Party, send: list[str], size: int = 5, bits: int = 0, grow: bool = False
) -> Travelling:
    size = size + party.index if grow else size
    reply: Travelling = {}
    for name in send:
        kind, _, number = name.partition("_")
        sums = reply.setdefault(kind, {})
        sums[int(number)] = addend(party.index, name, size, bits)
    return reply


def _reading(
    party: Party,
    part: Opened | None = None,
    parts: Annotated[dict[int, Array], Reals("*"), SEALED] | None = None,
    up: Annotated[dict[int, Array], Reals("*"), SEALED] | None = None,
    down: Annotated[dict[int, Array], Reals("*"), SEALED] | None = None,
) -> Seen:
    """Tell the server what a sum is, which no step of the package does."""
    seen = {"part": part, "parts": parts, "up": up, "down": down}
    return {name: value for name, value in seen.items() if value is not None}


def _blocks(
    party: Party, part: Annotated[dict[int, Array], Reals("*"), SEALED]
) -> Seen:
    return {"parts": part}


def _plainly(party: Party, part: Annotated[Array, Reals("*")]) -> Seen:
    return {"part": part}


def _chaining(party: Party, part: Opened | None = None) -> Chained:
    seen: Chained = {} if part is None else {"seen": part}
    return {"part": addend(party.index, "next", 5, 0), **seen}


def _structured(party: Party, at: Annotated[Summed, OWN] | None = None) -> Chained:
    seen: Chained = {} if at is None else {"seen": at.part + at.rows}
    return {"part": addend(party.index, "next", 5, 0), **seen}


SECRET_BYTES = b"0123456789abcdef, a secret of the parties"


def _telling(party: Party, size: int = 0) -> Told:
    return {"key": SECRET_BYTES + b"x" * size} if party.index == 0 else {}


def _hearing(party: Party, key: Secret | None = None) -> Heard:
    assert key is None or type(key) is bytes
    return {} if key is None else {"key": key}


sealing, relaying = Step(_sealing, "sealing"), Step(_relaying, "relaying")
reading, blocks = Step(_reading, "reading"), Step(_blocks, "blocks")
plainly, chaining = Step(_plainly, "plainly"), Step(_chaining, "chaining")
telling, hearing = Step(_telling, "telling"), Step(_hearing, "hearing")
structured = Step(_structured, "structured")


@pytest.fixture(autouse=True)
def steps(monkeypatch):
    first = sealing, relaying, reading, blocks, plainly, chaining
    for step in (*first, telling, hearing, structured):
        monkeypatch.setitem(STEPS, step.action, step)


def arrays(messages: Sequence[Message], action: str) -> list[np.ndarray]:
    return [
        array.numpy()
        for message in messages
        if message.metadata.message_type == f"train.{action}"
        for array in unbundle(message.content)["arrays"].values()
    ]


def some(count: int = 3) -> list[Party]:
    return [Party(np.ones((4, 1))) for _ in range(count)]


def greet(
    grid: InProcessGrid | None = None, *, count: int = 3, masking: str = "ring"
) -> Parties:
    grid = InProcessGrid(some(count)) if grid is None else grid
    return Parties(Exchange(grid, timeout=10.0), seed=7, masking=masking)


def ask(parties: Parties, name: str, to: int, **values: Any) -> Replies[Part]:
    step = sealing.summing(part=Sum(2.0**10, name, to=to))
    return parties.ask(step, bits=bits_of(name), **values)


def read(parties: Parties, **sealed: Sealed) -> dict[str, Any]:
    """Let the party that sums are for tell what they are: `up_2` goes in `up`."""
    (to,) = {part.to for part in sealed.values()}
    values: dict[str, Any] = {}
    for name, value in sealed.items():
        kind, underscore, number = name.partition("_")
        if underscore:
            values.setdefault(kind, {})[int(number)] = opened(value)
        else:
            values[name] = opened(value)
    return flatten(parties.ask_one(to, reading, **values))


def relay(
    parties: Parties, sums: Mapping[str, tuple[Sum, Tree]], **values: Any
) -> dict[str, Sealed]:
    bits = {bits_of(spec.group) for spec, _ in sums.values()}
    return parties.relay_sums(relaying, sums, send=[], bits=bits.pop(), **values)


def assert_uniform(elements: np.ndarray) -> None:
    """Fail where a byte is not: FALSE_ALARM in each tail over all of an element."""
    columns = octets(elements).T
    assert all(uniform(column, alarm=FALSE_ALARM / len(columns)) for column in columns)


# -- a sum for one party, in one round trip --------------------------------------------


@pytest.mark.parametrize("to", [0, 1, 2])
@pytest.mark.parametrize("name", GROUPS)
def test_the_sum_reaches_the_party_it_is_for(name, to, clock):
    masking = "plain" if name == "plain" else "ring"
    parties = greet(masking=masking)
    replies = ask(parties, name, to)
    assert replies.sums == {}
    assert all("part" not in reply for reply in replies)
    sealed = replies.sealed["part"]
    assert sealed.to == to
    actual = read(parties, part=sealed)["part"]
    expected = pooled(range(3), "part", 5, bits_of(name))
    np.testing.assert_array_equal(actual, expected)
    assert actual.dtype == expected.dtype
    assert parties.ledger.round_trips == 3


@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("name", ["ring", "circle16", "circle32"])
def test_all_that_the_server_sees_is_uniform(name, zero, clock):
    grid = Listening(some())
    sealed = ask(greet(grid), name, 1, size=2**15, zero=zero).sealed["part"]
    addends = arrays(grid.seen, "sealing")
    assert len(addends) == 3
    for elements in (*addends, *sealed.parts):
        assert len(elements) == 2**15
        assert_uniform(elements)
    # Without the pad, which is the receiver's alone, the sum is no noise.
    adding = group(name, 2.0**10, 3)
    bare = pooled(range(3), "part", 2**15, bits_of(name)) * (not zero)
    assert_uniform(adding.subtract(sealed.parts[0], adding.encode(bare)[0]))


@pytest.mark.parametrize("name", ["ring", "circle16", "circle32"])
def test_asked_for_the_same_sum_again_a_party_hides_it_anew(name, clock):
    """Under equal masks the server would learn how much an addend has changed."""
    grid = Listening(some())
    parties = greet(grid)
    for _ in range(2):
        ask(parties, name, 1, size=2**14)
    addends = arrays(grid.seen, "sealing")
    adding = group(name, 2.0**10, 3)
    for first, second in zip(addends[:3], addends[3:], strict=True):
        assert_uniform(adding.subtract(second, first))


@pytest.mark.parametrize("name", ["ring", "circle16", "circle32"])
def test_another_party_cannot_open_it(name, clock):
    parties = greet()
    size = 2**14
    sealed = ask(parties, name, 1, size=size).sealed["part"]
    expected = pooled(range(3), "part", size, bits_of(name))
    actual = read(parties, part=replace(sealed, to=0))["part"]
    # A value of 16 bits is right by chance in 1 of 65,536: more than 10 of these
    # 16,384 are so with a chance below 1e-12.
    assert np.count_nonzero(actual == expected) <= 10
    if name != "ring":
        assert_uniform(actual)
    np.testing.assert_array_equal(read(parties, part=sealed)["part"], expected)


def test_a_message_brings_one_sum_and_asks_for_the_next_of_its_name(clock):
    parties = greet()
    step = chaining.summing(part=Sum(2.0**10, to=1))
    first = parties.ask(step).sealed["part"]
    replies = parties.ask(step, part=each([None, opened(first), None]))
    expected = pooled(range(3), "next", 5, 0)
    np.testing.assert_array_equal(replies[1]["seen"], expected)
    assert "seen" not in replies[0]
    second = read(parties, part=replies.sealed["part"])["part"]
    np.testing.assert_array_equal(second, expected)
    assert (first.parts[0] != replies.sealed["part"].parts[0]).all()


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (({"size": 5}, {"size": 1}), r"parts of 'part' .* equal sizes, got 5 and 1"),
        (({"name": "ring"}, {"name": "circle16"}), "parts of 'part' .* same sum"),
    ],
)
def test_sealed_sums_are_added_unopened_if_they_fit(asked, words, clock):
    parties = greet()
    first, second = (ask(parties, "ring", 2).sealed["part"] for _ in range(2))
    actual = read(parties, part=first + second)["part"]
    np.testing.assert_array_equal(actual, 2 * pooled(range(3), "part", 5, 0))
    sums = [ask(parties, **{"name": "ring", "to": 2} | one).sealed for one in asked]
    with pytest.raises(PartyFailed, match=words):
        read(parties, part=sums[0]["part"] + sums[1]["part"])


def test_clips_of_a_sealed_sum_are_said(clock, caplog):
    parties = greet()
    step = sealing.summing(part=Sum(1.0, to=1))
    clipped = parties.ask(step).clipped
    values = np.array([addend(j, "part", 5, 0) for j in range(3)])
    assert clipped == np.count_nonzero(np.abs(values) > 1) > 0
    assert f"{clipped} values of sealing were clipped" in caplog.text
    replies = parties.ask_exactly(step)
    actual = read(parties, part=replies.sealed["part"])["part"]
    np.testing.assert_array_equal(actual, pooled(range(3), "part", 5, 0))
    assert len(parties.ledger.waits["sealing"]) == 3


# -- what a party refuses, and what it sends again -------------------------------------


@pytest.mark.parametrize(
    ("sums", "words"),
    [
        ({"part": Sum(2.0**10)}, "'part' only as part of a sum for a party"),
        ({"part": 2.0**10}, "'part' only as part of a sum for a party"),
        ({}, "'part' only as part of a sum, but the server did not"),
        ({"part": Sum(1.0, "plain", to=1)}, "only masked addends"),
    ],
)
def test_a_sum_that_is_not_for_the_server(sums, words, clock):
    grid = InProcessGrid(some())
    grid._app = make_client_app(lambda context: free(grid._parties[context.node_id]))
    with pytest.raises(PartyFailed, match=words):
        greet(grid).ask(sealing.summing(**sums))


@pytest.mark.parametrize(
    "change", [{"round": 2}, {"name": "part_1"}, {"action": "x"}, {"group": "circle16"}]
)
def test_a_pad_of_another_context_opens_noise(change, clock):
    parties = greet()
    sealed = ask(parties, "circle32", 1, size=6).sealed["part"]
    (seal,) = sealed.seals
    other = replace(sealed, seals=(replace(seal, **change),))
    if change == {"group": "circle16"}:  # of elements of the other width
        with pytest.raises(PartyFailed, match="'part' must hold uint16 elements"):
            read(parties, part=other)
        return
    expected = pooled(range(3), "part", 6, 32)
    # One of six agrees by chance in 1 of 10,000 times, of those with 16 bits.
    assert np.count_nonzero(read(parties, part=other)["part"] == expected) <= 1


@pytest.mark.parametrize("other", ["other", "part1part", "parts_1", "p"])
def test_a_sum_of_another_name_is_refused(other, clock):
    parties = greet()
    sealed = ask(parties, "circle32", 1).sealed["part"]
    with pytest.raises(PartyFailed, match=f"seal of '{other}' is for a different"):
        parties.ask_one(1, reading, **{other: sealed})


@pytest.mark.parametrize("number", [0, 12])
def test_a_number_behind_a_name_says_whose_or_which_block(number, clock):
    parties = greet()
    sealed = ask(parties, "circle32", 1).sealed["part"]
    actual = parties.ask_one(1, blocks, part={number: opened(sealed)})["parts"][number]
    np.testing.assert_array_equal(actual, pooled(range(3), "part", 5, 32))


def test_what_a_step_takes_in_the_clear_does_not_come_sealed(clock):
    """It might show in its reply what only the party may know."""
    parties = greet()
    sealed = ask(parties, "ring", 1).sealed["part"]
    with pytest.raises(ValueError, match="part is for party 1, not party 2"):
        parties.ask_one(2, reading, part=opened(sealed))  # and no round is lost
    with pytest.raises(PartyFailed, match="plainly accepts no 'part'"):
        parties.ask_one(1, plainly, part=opened(sealed))


def test_a_structure_holds_a_sum_beside_plain_values(clock):
    """The digest of one party's inputs covers the rows alone, at both ends."""
    parties = greet()
    sealed = ask(parties, "ring", 1).sealed["part"]
    at = [Summed(np.arange(5), opened(sealed)) if j == 1 else None for j in range(3)]
    replies = parties.ask(structured.summing(part=Sum(2.0**10, to=2)), at=each(at))
    expected = pooled(range(3), "part", 5, 0) + np.arange(5)
    np.testing.assert_array_equal(replies[1]["seen"], expected)
    np.testing.assert_array_equal(
        read(parties, part=replies.sealed["part"])["part"],
        pooled(range(3), "next", 5, 0),
    )


def test_the_digest_covers_the_rows_of_a_structure_and_not_its_sum():
    fields = structured.contract.request

    def digest(row, part):
        values = {"at.rows": np.array([row]), "at.part.0": np.full(1, part)}
        return own_digest(fields, values, b"salt")

    assert digest(1, 0.0) == digest(1, 1.0) != digest(2, 0.0)


@pytest.mark.parametrize("field", ["rows", "part"])
def test_a_structure_takes_both_of_its_values(field, clock):
    parties = greet()
    sealed = ask(parties, "ring", 1).sealed["part"]
    values = {"rows": np.arange(5), "part": opened(sealed)} | {field: None}
    with pytest.raises(PartyFailed, match=f"at: '{field}' is missing"):
        parties.ask_one(1, structured, at=Summed(**values))


@pytest.mark.parametrize(
    ("step", "values"),
    [
        (structured, {"at": Summed(np.arange(3), np.ones(3))}),
        (reading, {"part": np.ones(3)}),
        (reading, {"up": {0: np.ones(3), 2: np.ones(3)}}),
        (blocks, {"part": {1: np.ones(3)}}),
        (hearing, {"key": b"a key of the server"}),
    ],
)
def test_what_must_come_from_a_party_does_not_come_in_the_clear(step, values, clock):
    name = next(iter(values))
    with pytest.raises(PartyFailed, match=f"'{name}.* must come, encrypted, from"):
        greet().ask_one(1, step, **values)


SEAL = "pad sealing part 1 ring 0x1p+10 0"


def seals(*texts: str) -> Any:
    return lambda values, frame: frame.update({"sealed.part": list(texts)})


def part(array: Any) -> Any:
    return lambda values, frame: values.update({"part.0": array})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (seals(), "seals of 'part'"),
        (seals(SEAL, SEAL), "'part.1'"),
        (seals("pad sealing part 1 none 0x1p+10 0"), "group must be one of"),
        (seals("pad sealing part 1 ring 0x0p+0 0"), "bound must be"),
        (seals("relay sealing part 1 ring 0x1p+10 0"), "altered in transit"),
        (seals("secret sealing part 1 - - 0"), "altered in transit"),
        (seals("relay sealing part 1 ring 0x1p+10 3"), "below 3, got 3"),
        (seals("relay sealing part 1 ring 0x1p+10 1"), "party 1"),
        (lambda values, frame: frame.pop("sealed.part"), r"malformed: 'part\.0'"),
        (lambda values, frame: values.pop("part.0"), "'part.0'"),
        (part(5), "'part.0'"),
        (part(np.ones(5)), "uint64 elements"),
        (part(np.array(["a", "b"])), "uint64 elements"),
    ],
)
def test_a_forged_request_is_refused_in_a_sentence(change, words, clock):
    parties = greet(Forging(some(), change))
    sealed = ask(parties, "ring", 1).sealed["part"]
    with pytest.raises(PartyFailed, match=f"'party-1' failed.*{words}") as caught:
        parties.ask_one(1, chaining, part=opened(sealed))
    assert "unexpectedly" not in caught.value.reason


@pytest.mark.parametrize("action", ["sealing", "relaying", "reading"])
def test_asked_again_a_party_sends_the_same_bytes(action, clock):
    grid = FaultyGrid(some(), [Fault("duplicate", action, nth=None)], clock)
    parties = greet(grid)
    part = ask(parties, "circle16", 1).sealed["part"]
    up = relay(parties, {"up_1": (Sum(2.0**10), spanning("tree", range(3), 1))})
    actual = read(parties, part=part, up_1=up["up_1"])
    np.testing.assert_array_equal(actual["part"], pooled(range(3), "part", 5, 16))
    np.testing.assert_array_equal(actual["up_1"], pooled(range(3), "up_1", 5, 0))
    assert len(grid.twins) == {"sealing": 3, "relaying": 3, "reading": 1}[action]
    for twins in grid.twins:  # the frame has the seconds that each took
        one, other = (digest_of_values(pack(unpack(twin.content)[0])) for twin in twins)
        assert one == other


# -- from party to party ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("topology", "count", "root"),
    [(t, T, j) for t in ("ring", "tree") for T in range(2, 7) for j in range(T)],
)
def test_a_sum_travels_to_its_root(topology, count, root, clock):
    parties = greet(count=count)
    tree = spanning(topology, range(count), root)
    name = f"up_{root}"
    sealed = relay(parties, {name: (Sum(2.0**10), tree)})[name]
    assert sealed.to == root
    actual = read(parties, **{name: sealed})[name]
    np.testing.assert_array_equal(actual, pooled(range(count), name, 5, 0))
    hops = {"ring": count - 1, "tree": int(np.ceil(np.log2(count)))}[topology]
    assert len(tree.hops) == hops
    assert len(parties.ledger.waits["relaying"]) == hops
    messages = [parties.ledger.entry("relaying", p.name).messages for p in parties]
    assert messages == [1] * count  # the root's is to itself


@pytest.mark.parametrize("topology", ["ring", "tree"])
@pytest.mark.parametrize("count", [2, 3, 4, 6])
def test_two_trees_to_each_of_two_roots_at_once(topology, count, clock):
    """T1 over all parties and T2 over all but one, for two holders of coefficients."""
    grid = Listening(some(count))
    parties = greet(grid, masking="ring")
    real, everyone = Sum(2.0**60, "plain"), list(range(count))
    sums: dict[str, tuple[Sum, Tree]] = {}
    for root, kept in ((0, 1), (1, count - 1 if count > 2 else 0)):
        first, second = two_trees(topology, everyone, root, kept)
        sums |= {f"up_{root}": (real, first), f"down_{root}": (real, second)}
    grid.sent.clear()
    sealed = relay(parties, sums)
    trips = max(1, *(len(tree.hops) for _, tree in sums.values()))
    assert len(parties.ledger.waits["relaying"]) == trips
    for root in (0, 1):
        names = f"up_{root}", f"down_{root}"
        actual = read(parties, **{name: sealed[name] for name in names})
        for name in names:
            leaves = sums[name][1].leaves
            np.testing.assert_array_equal(actual[name], pooled(leaves, name, 5, 0))


def test_parties_without_a_hop_get_no_message(clock):
    grid = Listening(some(4))
    parties = greet(grid)
    grid.sent.clear()
    up = relay(parties, {"up_3": (Sum(2.0**10), ring([1, 0, 2, 3]))})["up_3"]
    rounds: dict[int, set[int]] = {}
    for message in grid.sent:
        frame = unpack(message.content)[1]
        rounds.setdefault(frame["round"], set()).add(frame["index"])
    assert rounds == {1: {1, 3}, 2: {0}, 3: {2}}  # the root keeps its own at first
    # All go on from the round in which each was asked last.
    parties.ask(reading)
    actual = read(parties, up_3=up)
    np.testing.assert_array_equal(actual["up_3"], pooled(range(4), "up_3", 5, 0))
    previous = [unpack(m.content)[1]["previous"] for m in grid.sent[4:]]
    assert previous == [2, 1, 3, 1, 4]


@pytest.mark.parametrize("topology", ["ring", "tree"])
def test_what_travels_is_uniform_to_the_server(topology, clock):
    """Also of plain numbers: what hides them is the encryption."""
    grid = Listening(some(4))
    parties = greet(grid, masking="plain")
    tree = spanning(topology, range(4), 3)
    relay(parties, {"up_3": (Sum(2.0**60), tree)}, size=2**14)
    seen = [a.view("<u8") for a in arrays(grid.seen, "relaying")]
    sent = [a.view("<u8") for a in arrays(grid.sent, "relaying")]
    assert len(seen) == 4
    assert len(sent) == (2 if topology == "ring" else 1)
    for elements in seen + sent:
        assert len(elements) == 2**14 + 2  # and a tag of 16 bytes
        assert_uniform(elements)


def test_on_its_way_a_sum_stays_masked_to_the_parties_that_pass_it_on(
    clock, monkeypatch
):
    """Party 1 of a ring opens the part of party 0: masks are on it until the end."""
    shown: list[np.ndarray] = []
    plain = PartySums._open

    def watched(self, array, seal):
        adding, part = plain(self, array, seal)
        shown.append(part)
        return adding, part

    monkeypatch.setattr(PartySums, "_open", watched)
    parties = greet()
    order = spanning("ring", range(3), 2)
    up = relay(parties, {"up_2": (Sum(1.0, "circle16"), order)}, size=2**15)["up_2"]
    (part,) = shown
    assert_uniform(part)
    actual = read(parties, up_2=up)["up_2"]
    np.testing.assert_array_equal(actual, pooled(range(3), "up_2", 2**15, 16))


@pytest.mark.parametrize("name", ["ring", "circle16"])
def test_a_tree_without_a_party_has_no_masks_that_cancel(name, clock):
    parties = greet()
    with pytest.raises(ValueError, match=r"tree of 'up_0' must have 3 leaves.* got 2"):
        relay(parties, {"up_0": (Sum(1.0, name), ring([1, 0]))})
    assert parties.ledger.round_trips == 1


def test_parts_of_several_sizes_do_not_travel(clock):
    parties, tree = greet(), spanning("ring", range(3), 2)
    with pytest.raises(PartyFailed, match=r"'up_2' .* equal sizes, got 2 a") as caught:
        relay(parties, {"up_2": (Sum(2.0**10), tree)}, size=1, grow=True)
    assert (caught.value.party, caught.value.action) == ("party-1", "relaying")


def test_values_of_a_sum_that_travels_are_not_clipped(clock):
    """Nobody could count them without learning whose they are."""
    trees = {"up_2": (Sum(1.0), spanning("ring", range(3), 2))}
    with pytest.raises(PartyFailed, match="'up_2' must be within the bound"):
        relay(greet(), trees)


# -- what a server cannot do to it -----------------------------------------------------


class Forging(InProcessGrid):
    """A server that changes what it passes on, and makes the digest fit."""

    def __init__(self, parties: Any, change: Any, key: str = "sealed.") -> None:
        super().__init__(parties)
        self.change, self.key, self.forged = change, key, 0

    def push_messages(self, messages):
        messages = list(messages)
        for message in messages:
            values, frame = unpack(message.content)
            del frame["digest"]
            if any(key.startswith(self.key) for key in frame):
                self.change(values, frame)
                self.forged += 1
            message.content = pack(values, frame)
        return super().push_messages(messages)


def altered(change: Any) -> Any:
    def forge(values: dict[str, Any], frame: dict[str, Any]) -> None:
        values["up_2.0"] = change(values["up_2.0"])

    return forge


def reseal(old: str, new: str) -> Any:
    def forge(values: dict[str, Any], frame: dict[str, Any]) -> None:
        (seal,) = frame["sealed.up_2"]
        assert old in seal
        frame["sealed.up_2"] = [seal.replace(old, new)]

    return forge


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (altered(lambda part: part ^ np.uint64(1)), "party 0 to party 1 in relaying"),
        (altered(lambda part: part[:-1]), "party 0 to party 1 in relaying"),
        (altered(lambda part: part[:0]), "party 0 to party 1 in relaying"),
        (reseal(" up_2 1 ", " up_2 2 "), "party 0 to party 1 in relaying"),
        (reseal(" up_2 ", " up_1 "), "party 0 to party 1 in relaying"),
        (reseal("relaying", "reading"), "party 0 to party 1 in reading"),
        (reseal("+10 0", "+10 2"), "party 2 to party 1 in relaying"),
        (reseal("+10 0", "+10 7"), "malformed: a party.* must be below 3, got 7"),
    ],
    ids=["bit", "cut", "empty", "round", "name", "step", "sender", "no party"],
)
def test_a_message_that_was_forged_on_its_way(change, words, clock, caplog):
    grid = Forging(some(), change)
    tree = spanning("ring", range(3), 2)
    end = "" if "malformed" in words else " was altered"
    with pytest.raises(PartyFailed, match=words + end) as caught:
        relay(greet(grid), {"up_2": (Sum(2.0**10), tree)})
    assert (caught.value.party, caught.value.action) == ("party-1", "relaying")
    assert grid.forged == 1
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("name", ["ring", "circle16", "circle32"])
def test_a_server_that_tells_each_of_another_receiver_gets_noise(name, clock):
    """No party would put its pad on: so the masks bind the receiver."""

    def change(values, frame):
        frame["to.part"] = (frame["index"] + 1) % 3

    grid = Forging(some(), change, "to.part")
    sealed = ask(greet(grid), name, 1, size=2**15).sealed["part"]
    adding = group(name, 2.0**10, 3)
    bare, _ = adding.encode(pooled(range(3), "part", 2**15, bits_of(name)))
    assert_uniform(adding.subtract(sealed.parts[0], bare))


@pytest.mark.parametrize("part", [0, 1, 2])
def test_the_last_message_is_checked_too(part, clock):
    """In a tree of four the root has its own part and those of two children."""
    parties = greet(count=4)
    up = relay(parties, {"up_0": (Sum(2.0**10), spanning("tree", range(4), 0))})["up_0"]
    assert len(up.parts) == 3
    with pytest.raises(PartyFailed, match="to party 1 in relaying was altered"):
        read(parties, up_0=replace(up, to=1))
    parts = list(up.parts)
    parts[part] = parts[part] ^ np.uint64(1)
    words = f"party {up.seals[part].sender} to party 0 in relaying was altered"
    with pytest.raises(PartyFailed, match=words):
        read(parties, up_0=replace(up, parts=tuple(parts)))


# -- a secret of the parties -----------------------------------------------------------


def told(parties: Parties, **values: Any) -> list[Sealed | None]:
    """Let the first party tell; return what the server passes on to each."""
    return parties.ask(telling, **values).secrets["key"]


def hear(parties: Parties, secrets: Sequence[Sealed | None]) -> list[dict[str, Any]]:
    """Pass secrets on, one to each party; return what each has heard."""
    keys = [None if sealed is None else opened(sealed) for sealed in secrets]
    return list(parties.ask(hearing, key=each(keys)))


@pytest.mark.parametrize("masking", ["ring", "plain"])
@pytest.mark.parametrize("count", [2, 3, 5])
def test_a_secret_reaches_all_other_parties(count, masking, clock):
    parties = greet(count=count, masking=masking)
    secrets = told(parties)
    assert secrets[0] is None
    assert [sealed.to for sealed in secrets[1:]] == list(range(1, count))
    assert hear(parties, secrets) == [{}] + [{"key": SECRET_BYTES}] * (count - 1)
    assert parties.ledger.round_trips == 3  # no message more than those of the steps


def test_a_secret_is_in_no_message_and_of_one_length(clock):
    grid = Listening(some(4))
    replies = greet(grid).ask(telling)
    assert list(replies) == [{}] * 4
    sent = [unpack(m.content)[0] for m in grid.seen[-4:]]
    assert sorted(map(sorted, sent)) == [[], [], [], ["key.1", "key.2", "key.3"]]
    sealed = [part.parts[0].tobytes() for part in replies.secrets["key"][1:]]
    assert {len(data) for data in sealed} == {len(SECRET_BYTES) + 16}
    assert len(set(sealed)) == 3
    for message in grid.sent + grid.seen:
        assert SECRET_BYTES[:8] not in message_to_proto(message).SerializeToString()


def test_a_sealed_secret_is_uniform_and_sealed_anew_when_told_again(clock):
    parties = greet()
    first, second = (told(parties, size=2**14)[1].parts[0] for _ in range(2))
    assert_uniform(first)
    assert_uniform(first ^ second)


def seal_with(**changes: Any) -> Any:
    return lambda mine, other: {"seals": (replace(mine.seals[0], **changes),)}


@pytest.mark.parametrize(
    "change",
    [
        lambda mine, other: {"parts": other.parts},
        lambda mine, other: {"parts": (mine.parts[0] ^ np.uint8(1),)},
        lambda mine, other: {"parts": (mine.parts[0][:-1],)},
        lambda mine, other: {"parts": (mine.parts[0][:0],)},
        lambda mine, other: {"parts": (np.ones(3),)},
        seal_with(round=2),
        seal_with(name="key_1"),
        seal_with(action="hearing"),
        seal_with(sender=1),
        seal_with(sender=2),
    ],
    ids=[
        *("another's", "altered", "cut", "empty", "of floats", "round", "name", "step"),
        *("of 1", "of 2"),
    ],
)
def test_a_secret_that_was_changed_on_its_way_is_refused(change, clock, caplog):
    parties = greet()
    _, other, mine = told(parties)
    wrong = replace(mine, **change(mine, other))
    with pytest.raises(PartyFailed, match="was altered in transit") as caught:
        hear(parties, [None, None, wrong])
    assert caught.value.party == "party-2"
    assert SECRET_BYTES[:10].decode() not in caplog.text


def test_a_secret_is_no_sum_and_a_sum_is_no_secret(clock):
    parties = greet()
    mine = told(parties)[2]
    seal = replace(mine.seals[0], kind="relay", group="ring", bound=1.0)
    with pytest.raises(PartyFailed, match="altered in transit, or belongs to a"):
        hear(parties, [None, None, replace(mine, seals=(seal,))])
    parties = greet()
    mine = told(parties)[2]
    with pytest.raises(PartyFailed, match="'key' must come from one party"):
        hear(parties, [None, None, mine + mine])


def test_the_server_cannot_open_a_secret(clock, monkeypatch):
    """With a key of its own in the place of any party's, and all else as it was."""
    by_party, received = Relay.open, []

    def recorded(relay, *message):
        content = by_party(relay, *message)
        received.append((message, content))
        return content

    grid = Listening(some())
    parties = greet(grid)
    monkeypatch.setattr(Relay, "open", recorded)
    hear(parties, told(parties))
    (_, *message), content = received[-1]
    assert content == SECRET_BYTES
    frames = [unpack(message.content)[1] for message in grid.sent]
    frame = next(frame for frame in frames if "peers" in frame)
    keys = [frame["peers"][k : k + 32] for k in range(0, 96, 32)]
    private = new_private_key()
    for place in range(3):
        forged = [*keys[:place], public_key(private), *keys[place + 1 :]]
        server = Relay(private, forged, place, frame["session"])
        for sender in range(3):
            with pytest.raises(ValueError, match="was altered in transit"):
                by_party(server, sender, *message)
