"""Checks that every strategy must pass, in this package or in another."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
from flwr.app import ConfigRecord, Error, Message, RecordDict
from numpy.lib.stride_tricks import sliding_window_view
from scipy.stats import chisquare

from vfl_flower.app.flwr_internals.serialisation import message_to_bytes
from vfl_flower.app.plan.plan import plan
from vfl_flower.app.plan.rehearsal import Shape, quietly
from vfl_flower.models.base import plain
from vfl_flower.party.answering import hello
from vfl_flower.party.consent import Consent, Limit
from vfl_flower.party.party import Party
from vfl_flower.protocol.contract import ENCRYPTED, OWN, Field, Reals, Whole
from vfl_flower.protocol.errors import FederationError, PartyFailed
from vfl_flower.protocol.messages import BUNDLE, n_bytes, pack, unpack
from vfl_flower.protocol.steps import STEPS, Step
from vfl_flower.protocol.terms import Kind
from vfl_flower.server.parties import Parties
from vfl_flower.server.strategy import ProtocolResult, ProtocolStrategy
from vfl_flower.shapes import shapes_only
from vfl_flower.simulation import InProcessGrid, apart, check_members
from vfl_flower.typing import Array

ALARM = 1e-9  # probability of a false alarm in :func:`check_masks`
TIMEOUT = 0.3  # seconds for which a run waits for a lost reply

FATAL = ("raise", "lose")
"""Faults that end a run: the party's app fails, or its reply is lost."""

IN_THE_CLEAR: frozenset[Kind] = frozenset({"rows", "embedded-rows", "centroids"})
"""Kinds for which a message may contain values of single rows."""

_REFUSES_TWO = re.compile(
    r"at least (three|\d+) parties|allow_two_parties|two parties|addition to two"
)


@shapes_only
@dataclass(frozen=True)
class Sent:
    """One message."""

    action: str
    party: int  # its index
    up: bool  # whether the party sent it
    values: dict[str, Any]  # by name
    frame: dict[str, Any]  # further values, such as the round
    data: bytes  # the serialised message
    size: int  # in bytes, as a ledger counts it

    @property
    def declared(self) -> Mapping[str, Field | None]:
        """The step's declaration of each value; None if the value is not declared."""
        contract = _step(self.action).contract
        # A sum that travels from party to party also appears in requests.
        fields = contract.reply if self.up else {**contract.reply, **contract.request}
        heads = {n: re.split(r"([._]\d+)+$|\.", n)[0] for n in self.values}
        return {n: fields.get(n, fields.get(head)) for n, head in heads.items()}

    def has(self, such: Callable[[Field], bool]) -> bool:
        """Return whether the message has values of a field for which `such` is true."""
        fields = self.declared.items()
        return any(f and such(f) and np.size(self.values[n]) for n, f in fields)


class Recorder(InProcessGrid):
    """A grid that records all messages in `transcript`."""

    def __init__(self, parties: Sequence[Party]) -> None:
        super().__init__(parties)
        self.transcript: list[Sent] = []

    def _push(self, message: Message) -> str:
        self._keep(message, message.metadata.dst_node_id, up=False)
        return super()._push(message)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Record the replies, and return them."""
        replies = super().pull_messages(message_ids)
        for message in replies:
            if message.has_content():
                self._keep(message, message.metadata.src_node_id, up=True)
        return replies

    def _keep(self, message: Message, node: int, up: bool) -> None:
        action = message.metadata.message_type.partition(".")[2]
        party = self.get_node_ids().index(node)
        data = message_to_bytes(message)
        sent = *unpack(message.content), data, n_bytes(message.content)
        self.transcript.append(Sent(action, party, up, *sent))


class _Struck(InProcessGrid):
    """A grid that injects faults, each into a step's first message to a party."""

    def __init__(
        self, parties: Sequence[Party], faults: Mapping[tuple[str, int], str]
    ) -> None:
        super().__init__(parties)
        self._faults = dict(faults)

    def _push(self, message: Message) -> str:
        action = message.metadata.message_type.partition(".")[2]
        party = message.metadata.dst_node_id - 1000
        fault = self._faults.pop((action, party), "")
        if fault == "damage":
            message.content = RecordDict({BUNDLE: ConfigRecord({BUNDLE: b"damaged"})})
        number = super()._push(message)
        if fault == "lose":
            del self._replies[number]
        elif fault == "raise":
            self._replies[number] = Message(Error(2, "as planned"), reply_to=message)
        elif fault == "alter" and (reply := self._replies[number]).has_content():
            values, frame = unpack(reply.content)
            sent = Sent(action, party, True, values, frame, b"", 0)
            for name, declared in sent.declared.items():
                if declared and declared.leaves in ENCRYPTED:
                    values[name] = values[name] ^ np.uint8(1)
            del frame["digest"]
            reply.content = pack(values, frame)
        return number


def _dealt(field: Field) -> bool:
    """Return whether an input has bytes that the server generates for one party."""
    array = field.array
    return field.sending == OWN and isinstance(array, Whole) and array.below == 256


@contextmanager
def _dealing(action: str, party: int) -> Iterator[None]:
    """Make the server send altered randomness to a party, with a matching digest."""
    digests = Parties._blocks

    def altered(
        parties: Parties, step: Step[..., Any], requests: list[Mapping[str, Any]]
    ) -> Any:
        if step.action == action:
            fields, request = step.contract.request, requests[party]
            requests[party] = {
                name: value ^ np.uint8(1) if _dealt(fields[name]) else value
                for name, value in request.items()
                if value is not None
            }
        return digests(parties, step, requests)

    with patch.object(Parties, "_blocks", altered):
        yield


@shapes_only
class Run(NamedTuple):
    """A recorded run."""

    result: ProtocolResult
    transcript: Sequence[Sent]
    parties: Sequence[Party]


class Runs:
    """A strategy, a function that makes its parties, and two runs for all checks."""

    def __init__(
        self, strategy: ProtocolStrategy, make: Callable[[], Sequence[Party]]
    ) -> None:
        self.strategy, self.make = strategy, make

    def start(self, grid: InProcessGrid, timeout: float = 3600) -> ProtocolResult:
        """Run the strategy on a grid."""
        with apart():
            return self.strategy.start(grid, timeout=timeout)

    def letting(self, *kinds: Kind, never: Sequence[Kind] = ()) -> list[Party]:
        """Return parties whose consent names these kinds, and limits `never` to 0."""
        leaves: dict[str, Limit] = dict.fromkeys(kinds, Limit())
        leaves |= dict.fromkeys(never, Limit(run=0))
        consent = Consent(leaves=leaves, allow_seed=True, two_parties=True, peers=None)
        parties = [copy(party) for party in self.make()]
        for party in parties:
            party.consent = consent
        return parties

    def refusal(
        self, *kinds: Kind, never: Sequence[Kind] = ()
    ) -> FederationError | None:
        """Return the error of a run with the parties of :meth:`letting`, or None."""
        try:
            self.start(InProcessGrid(self.letting(*kinds, never=never)))
        except FederationError as error:
            return error
        return None

    def consenting(self) -> list[Party]:
        """Return parties whose consent names all kinds that the strategy declares."""
        return self.letting(*self.strategy.terms.needs, *self.strategy.terms.wants)

    def _run(self) -> Run:
        grid = Recorder(parties := self.consenting())
        return Run(self.start(grid), grid.transcript, parties)

    first = cached_property(_run)
    second = cached_property(_run)
    """Two runs of :meth:`consenting` parties on the same data."""


def check_needs(runs: Runs) -> None:
    """Check that steps count, and the terms name, all data that leave a party."""
    terms = runs.strategy.terms
    seen = runs.first.result.ledger.seen.values()
    left = {kind for of_step in seen for kind in of_step.kinds}
    if unused := set(terms.needs) - left:
        raise AssertionError(f"needs lists {_listed(unused)}, which no step reveals")
    for kind in terms.needs:
        refusal = runs.refusal(*(k for k in terms.needs if k != kind))
        if kind not in str(refusal):
            raise AssertionError(
                f"parties whose consent lacks {kind!r} must refuse the run"
            )
        refusal = runs.refusal(*terms.needs, *terms.wants, never=[kind])
        if kind not in str(refusal):
            raise AssertionError(
                f"parties whose consent limits {kind!r} to 0 must refuse the run, but "
                f"did not: a step does not count {kind!r}"
            )
    refusal = runs.refusal(*terms.needs) if terms.wants else None
    if isinstance(refusal, PartyFailed):  # refused too late, and not by the strategy
        raise AssertionError(f"a step fails without consent to `wants`: {refusal}")


def check_names(runs: Runs) -> None:
    """Check that a message has no value that its step does not declare."""
    asked = {"hello", *(step.action for step in runs.strategy.steps)}
    for sent in runs.first.transcript:
        if sent.action not in asked:
            raise AssertionError(f"steps must list {sent.action}, which a run requests")
        for name, declared in sent.declared.items():
            if declared is None:
                raise AssertionError(f"{sent.action} does not declare {name!r}")


def check_data(runs: Runs) -> None:
    """Check that real numbers leave only as declared, and data never in the clear."""
    parties = runs.first.parties
    numbers = [p.rows.take(np.arange(p.n_rows)).ravel() for p in parties]
    numbers += [np.ravel(p.y) for p in parties if p.y is not None]
    data = np.unique(np.concatenate(numbers).astype("<f8").view("<u8"))
    # A number with few digits, such as 0.5, may have any origin.
    data = data[np.count_nonzero(data[:, None].view(np.uint8), axis=1) >= 6]
    if not len(data):
        raise AssertionError("the parties' data must contain numbers with many digits")
    for sent in runs.first.transcript:
        kinds = {revealed.kind for revealed in _step(sent.action).reveals}
        for name, field in sent.declared.items() if sent.up and not kinds else ():
            if field and isinstance(field.array, Reals) and field.leaves is None:
                raise AssertionError(
                    f"{sent.action} sends {name!r} in the clear, but declares no kind "
                    "that it reveals"
                )
        if kinds & IN_THE_CLEAR:
            continue
        starts = sliding_window_view(np.frombuffer(sent.data, np.uint8), 8)
        words = np.ascontiguousarray(starts).view("<u8")
        if (data.take(np.searchsorted(data, words), mode="clip") == words).any():
            raise AssertionError(
                f"a message of {sent.action} contains a number from a party's data"
            )


def _hidden(run: Run) -> Iterator[tuple[tuple[object, ...], Array, int]]:
    """Yield the parties' masked and encrypted arrays, each with its place in the run.

    The number yielded is the index of a byte that a mask makes uniform even if the
    values are small. In the ring, it is the last byte, the only byte that takes all
    values.
    """
    frames: dict[int, dict[str, Any]] = {}
    for place, sent in enumerate(run.transcript):
        if not sent.up:
            frames[sent.party] = sent.frame
            continue
        for name, declared in sent.declared.items():
            if declared is not None and declared.leaves is not None:
                array = np.ascontiguousarray(sent.values[name])
                ring = frames[sent.party].get(f"group.{name}") == "ring"
                where = sent.action, sent.party, name, place
                yield where, array, array.itemsize - 1 if ring else 0


def check_masks(runs: Runs) -> None:
    """Check that two runs share no mask, and that their hidden numbers look random.

    The numbers must look random only if the two runs hide more than 100 of them.
    """
    second, parts = {where: array for where, array, _ in _hidden(runs.second)}, []
    for where, array, byte in _hidden(runs.first):
        texts = array.tobytes(), second.get(where, array[:0]).tobytes()
        size = min(map(len, texts)) // 8
        if np.equal(*(np.frombuffer(text, "<u8", size) for text in texts)).any():
            raise AssertionError(
                f"{where[2]!r} of {where[0]!r} is the same in two runs: its mask is "
                "missing or reused"
            )
        parts += [np.frombuffer(t, np.uint8)[byte :: array.itemsize] for t in texts]
    hidden = np.concatenate([*parts, np.empty(0, np.uint8)])
    counts = np.bincount(np.concatenate([hidden >> 4, hidden & 15]), minlength=16)
    if counts.sum() > 200 and chisquare(counts).pvalue < ALARM:
        raise AssertionError("masked or encrypted values must look random")


def check_plan(runs: Runs) -> None:
    """Check that a dry run shows training costs, and the values that leave a party."""
    result = runs.first.result
    if runs.strategy.task != "train":
        return
    planned = plan(runs.strategy, [Shape.of(info) for info in result.parties])
    if planned.ledger is None:
        raise AssertionError(f"a dry run cannot compute the costs: {planned.reason}")
    iterative = "converged" in result.metrics
    for action, waits in result.ledger.waits.items():
        trips = len(planned.ledger.waits.get(action, ()))
        varies = action in (planned.varying or ()) or (iterative and trips > 1)
        if trips != len(waits) and not varies:
            raise AssertionError(
                f"{action} took {len(waits)} round trips, but a dry run says {trips}: "
                "the number must depend neither on data nor on a bound that is too low"
            )
        seen, said = (of.seen.get(action) for of in (result.ledger, planned.ledger))
        if seen and said and (more := seen.reply - said.reply):
            raise AssertionError(f"a dry run must show {_listed(more)} of {action}")


def check_two_parties(runs: Runs) -> None:
    """Check that two parties get a result or an error that states the number needed."""
    if runs.strategy.task != "train":  # other tasks need all parties of the model
        return
    parties = sorted(runs.consenting(), key=lambda party: party.y is None)[:2]
    two = Runs(runs.strategy.replace(n_parties=0), lambda: parties[::-1])
    try:
        two.start(InProcessGrid(two.make()))
    except (FederationError, ValueError) as error:
        if not _REFUSES_TWO.search(str(error)):
            raise AssertionError(f"two parties get an unclear error: {error}") from None


def check_model(runs: Runs) -> None:
    """Check that a model is identical to the last bit after saving and loading."""
    result = runs.first.result
    trained, model = plain(result.arrays), result.model
    with tempfile.TemporaryDirectory() as folder:
        loaded = type(model).load(model.save(Path(folder, "model"))).arrays()
    names = trained.keys() & loaded.keys()
    kept = {n for n in names if np.array_equal(trained[n], loaded[n])}
    if changed := trained.keys() - kept:
        raise AssertionError(f"a saved model must keep its {_listed(changed)}")


def check_faults(runs: Runs) -> None:
    """Check that a fault ends in an error that names a party, or changes nothing."""
    expected = runs.first.result
    arrays, others = expected.model.arrays(), runs.second.result.model.arrays()
    stable = [n for n in arrays if np.array_equal(arrays[n], others[n])]
    names = [info.name for info in expected.parties]
    damaged: dict[tuple[str, int], str] = {}
    faults = [damaged]
    for turn, action in enumerate(expected.ledger.waits):
        asked = [names.index(p) for a, p in expected.ledger.entries if a == action]
        place = action, asked[turn % len(asked)]
        # A damaged request is sent again, so one run can damage a request in each step.
        damaged[place] = "damage"
        faults.append({place: FATAL[turn % 2]})
        # Parties refuse values altered by another party or by the server.
        sent = [s for s in runs.first.transcript if s.action == action]
        up = {s.party for s in sent if s.up and s.has(lambda f: f.leaves in ENCRYPTED)}
        if up:
            faults.append({(action, sorted(up)[turn % len(up)]): "alter"})
        dealt = sorted({s.party for s in sent if not s.up and s.has(_dealt)})
        faults += [{(action, party): "deal"} for party in dealt]
    for struck in faults:
        (action, party), fault = next(iter(struck.items()))
        what = f"with the fault {fault!r} at {names[party]!r} in {action}"
        if struck is damaged:
            what = "with a damaged request in each step"
        grid = _Struck(runs.consenting(), struck)
        dealing = _dealing(action, party) if fault == "deal" else nullcontext()
        try:
            with dealing:
                result = runs.start(grid, TIMEOUT if fault == "lose" else 3600)
        except FederationError as error:
            # Before its first reply a party is known only by its node.
            known = [*names, *(f"node {node}" for node in grid.get_node_ids())]
            if fault == "damage" or not any(n in str(error) for n in known):
                raise AssertionError(f"{what}, the run fails: {error}") from None
            continue
        if fault in (*FATAL, "alter"):
            raise AssertionError(f"{what}, the run must fail")
        changed = result.model.arrays()
        if wrong := {n for n in stable if not np.array_equal(arrays[n], changed[n])}:
            raise AssertionError(f"{what}, the model has different {_listed(wrong)}")


def check_quality(runs: Runs) -> None:
    """Check from its metrics that a model is better than the trivial model."""
    metrics = dict(runs.first.result.metrics)
    if metrics.keys() >= {"test_error", "test_base_error"}:
        metrics["gain"] = metrics["test_base_error"] - metrics["test_error"]
    for name in ("test_r2", "explained", "gain"):
        if name in metrics and not metrics[name] > 0:
            raise AssertionError(f"{name} must be above 0, got {metrics[name]:.3g}")


CHECKS = (
    *(check_needs, check_names, check_data, check_masks, check_plan),
    *(check_two_parties, check_model, check_faults, check_quality),
)
"""The checks of :func:`check_strategy`."""


def check_strategy(
    strategy: ProtocolStrategy, parties: Sequence[Party] | Callable[[], Sequence[Party]]
) -> None:
    """Run a strategy some twenty times in this process, and check these runs.

    Passing these checks does not prove privacy. Arrays of real numbers may leave a
    party only in a sum, in encrypted form, or in a step that declares the kinds that it
    reveals. Beyond that, the checks only find float64 numbers of a party's data that
    appear unchanged in messages, and they skip steps that reveal rows or centroids.

    Parameters
    ----------
    strategy : ProtocolStrategy
        The strategy with its settings. With a seed, more values of the two results are
        compared.
    parties : sequence of Party, or callable
        Three or more parties; if a run changes their stored data, a function that makes
        the parties for each run. Their consents are replaced by consents that name all
        kinds that the strategy declares. If `test_r2`, `explained` or `test_error` is
        among the metrics, a model of their data must be better than the trivial model.

    Raises
    ------
    AssertionError
        A check fails; the message states the reason, and a note names the check.
    ValueError
        `strategy` is not a strategy, or does not support this number of parties.
    FederationError, PartyFailed
        Parties with these consents refuse the run, or the run fails.

    Examples
    --------
    >>> import numpy as np
    >>> import vfl_flower as vf
    >>> ids = np.arange(60)
    >>> X = np.random.default_rng(0).normal(size=(50, 1))
    >>> parties = [vf.Party(X, ids=ids[j : j + 50]) for j in (0, 5, 9)]
    >>> check_strategy(vf.Alignment("rows"), parties)
    """
    runs = Runs(strategy, parties if callable(parties) else lambda: parties)
    check_members(strategy, runs.make())
    with quietly():
        for check in CHECKS:
            try:
                check(runs)
            except Exception as error:
                error.add_note(f"in {check.__name__}: {check.__doc__}")
                raise


def _step(action: str) -> Step[..., Any]:
    return STEPS.get(action, hello)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(map(repr, names)))
