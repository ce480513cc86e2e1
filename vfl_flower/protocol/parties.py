"""The parties of a run as the server sees them: one call is one round trip."""

from __future__ import annotations

import functools
import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, Literal, cast, overload

import numpy as np
from flwr.app import RecordDict

from vfl_flower.protocol.answering import hello
from vfl_flower.protocol.checkpoint import Checkpoint
from vfl_flower.protocol.columns import (
    NO_COLUMNS,
    ColumnKind,
    Declared,
    agree,
    without_names,
)
from vfl_flower.protocol.common import has_own, own_digest
from vfl_flower.protocol.consent import OF_TWO, Kind, Terms
from vfl_flower.protocol.contract import (
    NEXT,
    PRIVATE,
    SECRET,
    ContractError,
    Leaves,
    Sizes,
    check_shape,
    declared_as,
    family,
    flatten,
    learn_sizes,
    structure,
)
from vfl_flower.protocol.exchange import (
    FIRST_POLL,
    LAST_POLL,
    POLL_GROWTH,
    Exchange,
    FederationError,
    Opened,
    PartyFailed,
)
from vfl_flower.protocol.frame import MOST_CLIPPED, Frame, SumRequest
from vfl_flower.protocol.identity import Credential, pack_credentials
from vfl_flower.protocol.ledger import Seen
from vfl_flower.protocol.messages import pack
from vfl_flower.protocol.names import is_name
from vfl_flower.protocol.replies import PartyInfo, Replies, check_alike, order_of
from vfl_flower.protocol.seals import Seal, Sealed
from vfl_flower.protocol.steps import Each, P, Question, R, Step, Sum, T
from vfl_flower.secure_aggregation.groups import Field, Group, Plain, Ring, group
from vfl_flower.secure_aggregation.masks import unmask_sum
from vfl_flower.secure_aggregation.trees import Tree
from vfl_flower.shapes import shapes_only
from vfl_flower.typing import Array, Arrays
from vfl_flower.version import __version__

log = logging.getLogger("vfl_flower")

SALT_BYTES = 16
"""Bytes of the salt of a digest."""
WIDER = 2.0**20
"""Factor by which a bound that clipped a value grows when the step is asked again."""
MOST_BOUND = 1e200
"""A bound above this one clips no value that a party computes in floats."""


class Parties(Sequence[PartyInfo]):
    """The parties of one run, in order of their index, and the only way to ask them.

    Making it is the first round trip, ``hello``. The keys of all travel with the next
    message.

    seed: the seed of all draws; None: the parties draw from their operating systems.
    masking: ``"ring"``: secure sums under pairwise masks; ``"plain"``: none, for tests.
    n_parties: how many to wait for; 0: those that are connected, at least
        ``terms.parties``.
    partition: whether parties hold different columns of the same rows (vertical),
        different rows of the same columns (horizontal), or anything (either).
    model: number of the model that the run is about: parties load their local models.
    columns: the order of the columns of that model, if parties hold rows; default: that
        of the first party.
    steps: the only steps that may be asked for; empty: any.
    terms: what a consent may refuse.

    It then has these attributes:

    session: random number of this session, 63 bits: the number of the model it trains.
    columns: if parties hold rows, digests of the names of their columns, in the order
        that all take; empty if the columns have no names.
    column_kinds, column_widths: what each column of a file holds, and how many columns
        of X it becomes.
    gaps: if parties hold rows, whether one of them has missing values.

    Raises FederationError for fewer than two parties, or if they do not fit together,
    and PartyFailed if a party cannot load its data or does not answer in time.
    """

    def __init__(
        self,
        exchange: Exchange,
        *,
        seed: int | None = None,
        masking: Literal["ring", "plain"] = "ring",
        n_parties: int = 0,
        partition: str = "vertical",
        model: str | None = None,
        columns: Sequence[str] = (),
        steps: Sequence[Step[..., Any]] = (),
        terms: Terms | None = None,
    ) -> None:
        self._steps, self._partition = steps, partition
        self._terms = replace(terms or Terms(), seeded=seed is not None)
        self._exchange, self.timeout = exchange, exchange.timeout
        self.grid, self.ledger = exchange.grid, exchange.ledger
        self.checkpoint = exchange.checkpoint
        self._seed = self.checkpoint.seed if seed is None else seed
        self._private_draws = seed is None
        self.session = self.checkpoint.number()
        self.masking, self._model = masking, model
        self._round = 0
        self._last: list[int] = []  # round in which each party was last asked
        self._peers = b""
        self._state_keys: list[bytes | None] = []
        self._credentials: bytes | None = None
        self._signed: dict[int, bytes] = {}  # by parties, below the list of keys
        self._unproven: set[int] = set()  # parties that lack these signatures
        self._columns: list[str] | None = None
        self.columns, self.gaps = list(columns), False
        self.column_kinds: dict[str, ColumnKind] = {}
        self.column_widths: dict[str, int] = {}
        self._infos: list[PartyInfo] = []
        self._greeted: dict[str, dict[str, Any]] = {}  # what a checkpoint holds
        self._hello(n_parties)

    @overload
    def __getitem__(self, index: int) -> PartyInfo: ...
    @overload
    def __getitem__(self, index: slice) -> list[PartyInfo]: ...
    def __getitem__(self, index: int | slice) -> Any:
        """Return party `index`."""
        return self._infos[index]

    def __len__(self) -> int:
        """Return the number of parties, T."""
        return len(self._infos)

    @property
    def n_rows(self) -> int:
        """Number of rows, n: the same at all parties, or with split rows their sum."""
        if self._partition == "horizontal":
            return sum(info.n_rows for info in self)
        return self[0].n_rows

    @property
    def label_holders(self) -> list[int]:
        """Indices of the parties that know labels, no two of the same row.

        Raises FederationError if no party holds labels.
        """
        holders = [j for j, info in enumerate(self) if info.n_labels]
        if not holders:
            raise FederationError("a party must hold the labels, but none does")
        return holders

    @property
    def label_holder(self) -> int:
        """Index of the one party that holds the labels of all rows.

        Raises FederationError if no party or several hold labels, or some are missing.
        """
        holders = [info for info in self if info.n_labels]
        if len(holders) != 1:
            names = ", ".join(info.name for info in holders)
            raise FederationError(
                "exactly one party must hold the labels, but "
                + (f"{names} do" if holders else "none does")
            )
        if holders[0].n_labels < self.n_rows:
            raise FederationError(
                f"{holders[0].name!r} must hold the labels of all {self.n_rows} rows, "
                f"{self.n_rows - holders[0].n_labels} are missing"
            )
        return self.label_holders[0]

    def let(self, kind: Kind, *places: int) -> bool:
        """Return whether parties let a kind leave them that the run does not need.

        If not, the log says whose consent lacks the line.
        """
        names = [self[j].name for j in places if kind not in self[j].lets]
        if names:
            log.info(
                "the run has no %s: the consent.toml of %s would need '%s = true'",
                *(kind, ", ".join(map(repr, names)), kind),
            )
        return not names

    def refuse_two(self, what: str, allowed: bool) -> None:
        """Refuse two parties if a sum would show one the other's contribution.

        `what` gives parties such sums, as the subject of a sentence; with `allowed`
        (``allow_two_parties``) it only warns. Raises FederationError otherwise.
        """
        if len(self) > 2:
            return
        reason = (
            f"{what} gives the parties sums over all, and between two the sum shows "
            "each the other's part"
        )
        if not allowed:
            raise FederationError(
                f"{reason}: it needs at least three parties, or allow_two_parties "
                "(in a run config allow-two-parties=true)"
            )
        log.warning("%s", reason)

    def hurry(self, seconds: float) -> None:
        """Wait for a reply for so many seconds at most from now on."""
        self._exchange.timeout = min(self._exchange.timeout, seconds)

    def leave_checkpoint(self) -> None:
        """Keep nothing in the checkpoint of what is asked from now on."""
        self._exchange.checkpoint = Checkpoint()

    def refused(self, j: int, step: Step[Any, Any]) -> bool:
        """Return whether party `j` has refused a step and so has done nothing of it."""
        return self._exchange.refused(step.action, self[j].node_id)

    # -- asking ---------------------------------------------------------------------

    def ask(
        self, question: Question[P, R], *args: P.args, **values: P.kwargs
    ) -> Replies[R]:
        """Ask all parties for a step, in one round trip; return the replies and sums.

        There is exactly one reply per party, in party order. :meth:`Step.summing` asks
        for the sums of arrays under masks, and :func:`~vfl_flower.protocol.steps.each`
        gives a parameter that differs between parties. Raises PartyFailed if a party
        refused, failed, sent something that its step does not declare, or did not
        answer in time.
        """
        _check_named(args)
        replies = self._ask(question.step, question.sums, values)
        if replies.clipped:
            log.warning(
                "%d values of %s were clipped to the bound of their sum, which is not "
                "exact",
                *(replies.clipped, question.step.action),
            )
        return replies

    def secure_sum(
        self, question: Question[P, R], *args: P.args, **values: P.kwargs
    ) -> Arrays:
        """Return only the sums over the parties, by name; see :meth:`ask`."""
        return self.ask(question, *args, **values).sums

    def ask_exactly(
        self, question: Question[P, R], *args: P.args, **values: P.kwargs
    ) -> Replies[R]:
        """Ask where no bound is known: those of the sums are first guesses.

        A guess is nearly always wide enough; where one clips a value, the server asks
        again with bounds 2^20 times as large. See :meth:`ask`.
        """
        _check_named(args)
        sums, step = dict(question.sums), question.step
        while (replies := self._ask(step, sums, values)).clipped:
            if any(spec.bound > MOST_BOUND for spec in sums.values()):
                raise FederationError(
                    f"the values of {step.action} must be below {MOST_BOUND:g} in "
                    f"size, {replies.clipped} are not"
                )
            self.ledger.clips[step.action] -= replies.clipped
            sums = {n: replace(s, bound=s.bound * WIDER) for n, s in sums.items()}
        return replies

    def ask_one(
        self, party: int, question: Question[P, R], *args: P.args, **values: P.kwargs
    ) -> R:
        """Ask one party in one round trip and return its reply; see :meth:`ask`."""
        _check_named(args)
        requests = {party: self._values_for(party, values)}
        return self._round_trip(question.step, requests, {}, _Blocks())[party].values

    def _ask(
        self, step: Step[Any, R], sums: Mapping[str, Sum], values: Mapping[str, Any]
    ) -> Replies[R]:
        wanted = {n: self._sum_request(s, self._round + 1) for n, s in sums.items()}
        bound = bool(sums) or step.contract.seals
        requests = self._requests(step, values, bound)
        blocks = self._blocks(step, requests) if bound else _Blocks()
        of_all = dict.fromkeys(range(len(self)), wanted)
        replies = self._round_trip(step, dict(enumerate(requests)), of_all, blocks)
        result: Replies[R] = Replies(
            [reply.values for reply in replies.values()],
            lambda j, reason: self.failure(j, step, reason),
            secrets=self._secrets(step, replies),
            clipped=self._clipped(step, replies) if sums else 0,
        )
        for name, asked in wanted.items():
            adding = self._group(asked)
            addends = [reply.hidden[name] for reply in replies.values()]
            for j, addend in enumerate(addends):
                if addend.shape != addends[0].shape:
                    reason = (
                        f"{name!r} has shape {addend.shape}, that of {self[0].name!r} "
                        f"has {addends[0].shape}"
                    )
                    raise self.failure(j, step, reason)
            if asked.to is None:
                result.sums[name] = self._sum_of(step, addends, adding)
            else:
                seal = self._seal("pad", step, name, asked)
                total = functools.reduce(adding.add, addends)
                result.sealed[name] = Sealed(asked.to, (total,), (seal,))
        return result

    def _sum_of(
        self, step: Step[Any, Any], addends: list[Array], adding: Group
    ) -> Array:
        """Return a sum; raise FederationError unless it can be one, up to rounding."""
        total = unmask_sum(addends, adding)
        if isinstance(adding, Ring | Plain):
            most = len(self) * adding.bound * (1 + 1e-9)
            if not np.abs(total).max(initial=0.0) <= most:
                raise self.faulty_sum(step, "numbers within their bound")
        return total

    def faulty_sum(self, step: Step[Any, Any], rule: str) -> FederationError:
        """Return the error for a sum that breaks a rule, whichever party is at fault.

        `rule` is what the sum of `step` must be: "finite numbers".
        """
        names = ", ".join(repr(info.name) for info in self)
        return FederationError(
            f"in {step.action!r} the parts of the parties do not add up to {rule}: one "
            f"of {names} is faulty"
        )

    def _clipped(self, step: Step[Any, Any], replies: Mapping[int, _Reply[Any]]) -> int:
        """Return how many values all parties together have clipped.

        Raises FederationError for more than they have sent: the masks do not cancel.
        """
        told = [reply.clipped or b"" for reply in replies.values()]
        counts = [np.frombuffer(count, "<u8") for count in told]
        total = unmask_sum(counts, group("ring", MOST_CLIPPED, len(self)))[0]
        sent = sum(a.size for reply in replies.values() for a in reply.hidden.values())
        if not 0 <= total <= sent:
            raise FederationError(
                f"the masks of {step.action} do not cancel: a party was asked "
                "something else than the others, or did not follow the protocol"
            )
        clips = self.ledger.clips
        clips[step.action] = clips.get(step.action, 0) + int(total)
        return int(total)

    def _requests(
        self, step: Step[Any, Any], values: Mapping[str, Any], bound: bool
    ) -> list[dict[str, Any]]:
        """Return the values of the request to each party.

        Raises ValueError if they differ in what must be common to all parties.
        """
        fields = step.contract.request
        for name in values.keys() & fields.keys() if bound else ():
            common = fields[name].told is None and fields[name].leaves is None
            if common and isinstance(values[name], Each):
                raise ValueError(
                    f"{name} must be the same for all parties of {step.action}, whose "
                    "masks cancel, and sealed bytes open, only then"
                )
        return [self._values_for(j, values) for j in range(len(self))]

    def _values_for(self, j: int, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of the request to party j."""
        for name, value in values.items():
            if isinstance(value, Each) and len(value.values) != len(self):
                raise ValueError(
                    f"{name} must have {len(self)} values, one for each party, got "
                    f"{len(value.values)}"
                )
        return {
            name: value.values[j] if isinstance(value, Each) else value
            for name, value in values.items()
        }

    def _blocks(
        self, step: Step[Any, Any], told: Sequence[Mapping[str, Any]]
    ) -> _Blocks:
        """Return the digests of what each party alone is told; none if nothing is."""
        fields = step.contract.request
        if not has_own(fields):
            return _Blocks()
        salts = [self.checkpoint.token(SALT_BYTES) for _ in told]
        pairs = zip(map(flatten, told), salts, strict=True)
        return _Blocks(b"".join(own_digest(fields, *pair) for pair in pairs), salts)

    def _secrets(
        self, step: Step[Any, Any], replies: Mapping[int, _Reply[Any]]
    ) -> dict[str, list[Any]]:
        """Return what parties have for others, encrypted, a list over the receivers."""
        secrets: dict[str, list[Any]] = {}
        for sender, reply in replies.items():
            for name, parts in reply.secrets.items():
                leaves = step.contract.reply[name].leaves
                private = leaves == PRIVATE
                if leaves == SECRET and parts and name in secrets:
                    first = self[secrets[name].index(None)].name
                    reason = f"it sends the secret {name!r} after {first!r} has"
                    raise self.failure(sender, step, reason)
                for to, part in parts.items():
                    sent = f"{name}_{to}" if private else name
                    seal = Seal("secret", step.action, sent, self._round, sender)
                    sealed = Sealed(to, (part,), (seal,))
                    empty: list[Any] = [{} if private else None for _ in self]
                    received = secrets.setdefault(name, empty)
                    if private:
                        received[to][sender] = sealed
                    else:
                        received[to] = sealed
        return secrets

    def relay_sums(
        self,
        question: Question[P, R],
        sums: Mapping[str, tuple[Sum, Tree]],
        *args: P.args,
        **values: P.kwargs,
    ) -> dict[str, Sealed]:
        """Let sums travel from party to party, encrypted, to the root of each tree.

        One hop along all trees is one round trip. The root sends its own addend to
        itself, and only parties in the tree take part. The step's parameter ``send``
        gets the names of the arrays that a party must send, whatever its value here.

        Raises ValueError if a tree leaves out a party, so that the masks of the others
        do not cancel, and PartyFailed as :meth:`ask` does.
        """
        _check_named(args)
        step, number = question.step, self._round + 1
        asked = {n: self._sum_request(spec, number) for n, (spec, _) in sums.items()}
        for name, (_, tree) in sums.items():
            if self._group(asked[name]).protects and len(tree.leaves) < len(self):
                raise ValueError(
                    f"the tree of {name!r} must have all {len(self)} parties, whose "
                    f"masks cancel only together, got {len(tree.leaves)}"
                )
        told = self._requests(step, values, bound=True)
        blocks = self._blocks(step, told)
        arrived: dict[tuple[str, int], Sealed] = {}
        for hop in range(max([1, *(len(tree.hops) for _, tree in sums.values())])):
            edges = {
                (name, sender): receiver
                for name, (_, tree) in sums.items()
                for sender, receiver in (
                    *(((tree.root, tree.root),) if hop == 0 else ()),
                    *(tree.hops[hop] if hop < len(tree.hops) else ()),
                )
            }
            requests: dict[int, dict[str, Any]] = {}
            wanted: dict[int, dict[str, SumRequest]] = {}
            for name, sender in sorted(edges, key=lambda edge: edge[1]):
                receiver = edges[name, sender]
                if sender not in requests:
                    requests[sender] = told[sender] | {"send": []}
                request = requests[sender]
                request["send"].append(name)
                travels = replace(asked[name], relay=receiver)
                wanted.setdefault(sender, {})[name] = travels
                if sender != receiver and (name, sender) in arrived:
                    request[name] = arrived.pop((name, sender))
            replies = self._round_trip(step, requests, wanted, blocks)
            for (name, sender), receiver in edges.items():
                seal = self._seal("relay", step, name, asked[name], sender)
                sealed = Sealed(receiver, (replies[sender].hidden[name],), (seal,))
                before = arrived.get((name, receiver))
                arrived[name, receiver] = sealed if before is None else before + sealed
        return {name: arrived[name, tree.root] for name, (_, tree) in sums.items()}

    def _sum_request(self, spec: Sum, number: int) -> SumRequest:
        where = spec.group or self.masking
        return SumRequest(number, float(spec.bound), where, spec.to)

    def _group(self, wanted: SumRequest) -> Group:
        return group(wanted.group, wanted.bound, len(self))

    def _seal(
        self,
        kind: Literal["pad", "relay"],
        step: Step[Any, Any],
        name: str,
        wanted: SumRequest,
        sender: int = 0,
    ) -> Seal:
        where = sender, wanted.group, wanted.bound
        return Seal(kind, step.action, name, self._round, *where)

    def _round_trip(
        self,
        step: Step[Any, R],
        requests: Mapping[int, Mapping[str, Any]],
        sums: Mapping[int, Mapping[str, SumRequest]],
        blocks: _Blocks,
    ) -> dict[int, _Reply[R]]:
        """Send parties their values, each with a frame, and return checked replies."""
        if self._steps and step not in self._steps:
            raise ValueError(f"steps must have {step.action}, which was asked for")
        if self._greeted and not self.checkpoint.ahead:
            self._greet_again()
        sizes = {j: self._sizes(step, j, values) for j, values in requests.items()}
        contents = {j: _split(j, flatten(values)) for j, values in requests.items()}
        nodes = {self[j].node_id: self[j].name for j in requests}
        messages = {}
        self._round += 1
        for j, (content, sealed) in contents.items():
            frame = Frame(
                session=self.session,
                seed=self._seed,
                private_draws=self._private_draws,
                masking=self.masking,
                round=self._round,
                previous=self._last[j],
                parties=len(self),
                index=j,
                peers=None if self._last[j] else self._peers,
                credentials=None if self._last[j] else self._credentials,
                signed=self._signatures(j) if self._last[j] else None,
                model=self._model,
                columns=None if self._last[j] else self._columns,
                blocks=blocks.digests,
                salt=blocks.salts[j] if blocks.salts else None,
                state_key=self._state_keys[j],
                sums=dict(sums.get(j, {})),
                sealed=sealed,
            )
            self._last[j] = self._round
            messages[self[j].node_id] = pack(content, frame.pack())
        replies = self._exchange(step.action, messages, nodes)
        for j, reply in zip(requests, replies, strict=True):
            if reply.signed is not None:
                self._signed[j] = reply.signed
        self._note(step, list(requests.values()), replies)
        return {
            j: self._checked(step, j, sizes[j], sums.get(j, {}), reply)
            for j, reply in zip(requests, replies, strict=True)
        }

    def _signatures(self, j: int) -> bytes | None:
        """Return the signatures of all parties, once, for a second message to j."""
        if j not in self._unproven or len(self._signed) < len(self):
            return None
        self._unproven.remove(j)
        return b"".join(self._signed[k] for k in range(len(self)))

    def _note(
        self,
        step: Step[Any, Any],
        requests: Sequence[Mapping[str, Any]],
        replies: Sequence[Opened],
    ) -> None:
        """Note in the ledger which of the declared values were sent."""
        seen = self.ledger.seen.setdefault(step.action, Seen())
        for values in requests:
            seen.request |= {n for n, v in values.items() if flatten({n: v})}
            seen.kinds |= {r.kind for r in step.reveals if r.applies(values)}
        for reply in replies:
            # Some values are in several parts: ``name_k`` or ``name.k``.
            heads = (re.split(r"[._]\d+$|\.", name)[0] for name in reply.values)
            seen.reply |= {
                n for n in (*reply.values, *heads) if n in step.contract.reply
            }

    def _sizes(self, step: Step[Any, Any], j: int, values: Mapping[str, Any]) -> Sizes:
        """Return the sizes that the reply of party j to these values may refer to."""
        sizes = {
            "n_rows": self[j].n_rows,
            "n_columns": self[j].n_columns,
            "n_parties": len(self),
        }
        learn_sizes(step.contract.request, values, sizes)
        return sizes

    def failure(self, j: int, step: Step[Any, Any], reason: str) -> PartyFailed:
        """Return the error that says why party `j` failed in a step."""
        info = self[j]
        return PartyFailed(info.name, step.action, reason, {info.node_id: info.name})

    def _checked(
        self,
        step: Step[Any, R],
        j: int,
        sizes: Sizes,
        sums: Mapping[str, SumRequest],
        arrived: Opened,
    ) -> _Reply[R]:
        """Return what a party has sent, if it is what its step declares."""
        fields, reply = step.contract.reply, arrived.values
        try:
            hidden = {name: reply.pop(name, None) for name in sums}
            secrets = {
                name: self._for_others(j, name, declared.leaves, reply)
                for name, declared in fields.items()
                if declared.leaves in (SECRET, PRIVATE, NEXT)
            }
            clear = {n: field for n, field in fields.items() if not field.leaves}
            values = structure(clear, reply, sizes)
            for name, wanted in sums.items():
                adding = self._group(wanted)
                array = hidden[name]
                if not isinstance(array, np.ndarray) or array.dtype != adding.dtype:
                    raise ContractError(f"it lacks the masked array {name!r}")
                if wanted.relay is None:  # otherwise it is encrypted
                    _check_elements(name, array, adding)
                    shaped = declared_as(fields, name)
                    if shaped is not None and shaped.array is not None:
                        check_shape(name, shaped.array.shape, array.shape, sizes)
                    if arrived.clipped is None:
                        raise ContractError("it lacks the number of clipped values")
        except ContractError as error:
            reason = f"its reply is malformed: {error}"
            raise self.failure(j, step, reason) from None
        return _Reply(cast(R, values), hidden, secrets, arrived.clipped)

    def _for_others(
        self, sender: int, name: str, leaves: Leaves | None, reply: dict[str, Any]
    ) -> dict[int, Array]:
        """Take what a party has encrypted for others out of its reply, by receiver."""
        if leaves == PRIVATE:
            keys = {to: key for to, key in family(name, reply) if to < len(self)}
        elif leaves == NEXT:
            keys = {(sender + 1) % len(self): name}
        else:
            keys = {j: f"{name}.{j}" for j in range(len(self)) if j != sender}
        parts = {to: reply.pop(key) for to, key in keys.items() if key in reply}
        if leaves == SECRET and parts and parts.keys() != keys.keys():
            raise ContractError(f"it must have {name!r} for each other party")
        for part in parts.values():
            if not isinstance(part, np.ndarray) or part.dtype != np.uint8:
                raise ContractError(f"{name!r} must be encrypted")
        return parts

    # -- hello ----------------------------------------------------------------------

    def _wait_for_nodes(self, n_parties: int, source: str = "") -> list[int]:
        """Wait for a number of nodes; `source` says where it comes from."""
        wanted = max(self._terms.parties, n_parties)
        deadline = time.monotonic() + self.timeout
        poll, told = FIRST_POLL, -1
        while len(nodes := sorted(self.grid.get_node_ids())) < wanted:
            if len(nodes) != told:
                told, left = len(nodes), max(0, round(deadline - time.monotonic()))
                known = ", ".join(self._registered(nodes).values())
                here = f"{told} connected" + (f" ({known})" if nodes else "")
                log.info(
                    "waiting for %d parties, %s; at most %d s more", wanted, here, left
                )
            if time.monotonic() > deadline:
                raise FederationError(
                    f"the run needs {wanted} parties{source}, {len(nodes)} connected "
                    f"within {self.timeout:g} s"
                )
            time.sleep(poll)
            poll = min(poll * POLL_GROWTH, LAST_POLL)
        if len(nodes) > n_parties > 0:
            raise FederationError(
                f"the run is for {n_parties} parties{source}, {len(nodes)} are "
                "connected (one that was stopped counts for a minute or two)"
            )
        return nodes

    def _hello(self, n_parties: int, source: str = "") -> None:
        held = self.checkpoint.nodes()
        nodes = held or self._wait_for_nodes(n_parties, source)
        unnamed = self._registered(nodes)
        contents = dict.fromkeys(nodes, self._greeting(len(nodes)))
        try:
            sent = self._exchange(hello.action, contents, unnamed)
        except PartyFailed as failure:
            raise _named(failure) from None
        replies: dict[int, dict[str, Any]] = {}
        for node, (reply, *_) in zip(nodes, sent, strict=True):
            name = _name_of(reply) or unnamed[node]
            if (version := reply.get("version")) != __version__:
                raise FederationError(
                    "all parties must run the same version of vfl_flower as the "
                    f"server, {__version__}: {name!r} has {str(version)[:20]!r}"
                )
            try:
                replies[node] = structure(hello.contract.reply, reply, {})
                if replies[node]["name"] != _name_of(reply):
                    raise ContractError("'name' must be printable text")
                for each in ("kinds", "widths"):
                    if len(reply[each]) != len(reply["columns"]):
                        rule = f"{each!r} must have one for each of 'columns'"
                        raise ContractError(rule)
            except ContractError as error:
                reason = f"its reply is malformed: {error}"
                raise PartyFailed(name, hello.action, reason, {node: name}) from None
        largest = max(replies, key=lambda node: replies[node]["n_parties"])
        announced = replies[largest]["n_parties"]
        if announced > len(nodes):  # the others are still to connect
            name = replies[largest]["name"] or unnamed[largest]
            self._hello(announced, f" by what {name!r} says")
            return
        order = order_of(replies)
        names = {
            node: replies[node]["name"] or f"party-{replies[node]['index']}"
            for node in order
        }
        self._check_consent({n: replies[node]["lacks"] for node, n in names.items()})
        self.ledger.rename({unnamed[node]: name for node, name in names.items()})
        compared = bool(replies[order[0]]["ids_digest"])
        shared = f"row ids {'are the same' if compared else 'were not compared'}"
        if self._partition == "horizontal":
            called, said = list(names.values()), [replies[node] for node in order]
            declared = cast(list[Declared], said)
            self._columns = agree(called, declared, self.columns)
            shared = "column names are the same"
            nameless = without_names(called, declared)
            if nameless and len(called) > 1:
                shared = (
                    "columns are matched by position, and nobody can tell whether they "
                    f"are the same, since they have no names at {', '.join(nameless)}"
                )
            self.gaps = any(replies[node]["gaps"] for node in order)
            named = next((said for said in declared if said["columns"]), NO_COLUMNS)
            digests = named["columns"]
            self.columns = self._columns or list(digests)
            self.column_kinds = dict(zip(digests, named["kinds"], strict=True))
            self.column_widths = dict(zip(digests, named["widths"], strict=True))
            if self._columns is not None:
                log.info("all parties take their columns in the order of one")
        check_alike(order, names, replies, self._partition)
        self._infos = [
            _of_reply(PartyInfo, replies[node] | {"node_id": node, "name": names[node]})
            for node in order
        ]
        log.info("%d parties: %s; %s", len(self), ", ".join(names.values()), shared)
        self._peers = b"".join(replies[node]["public_key"] for node in order)
        self._state_keys = [replies[node].get("state_key") for node in order]
        if any("identity" in replies[node] for node in order):
            credentials = [_of_reply(Credential, replies[node]) for node in order]
            self._credentials = pack_credentials(credentials)
            self._unproven = set(range(len(order)))
        self._last = [0] * len(order)
        if not all("identity" in reply for reply in replies.values()):
            self.checkpoint.remove()  # a party without a state-dir cannot go on
        elif held:
            self._greeted = {names[node]: replies[node] for node in order}

    def _registered(self, nodes: Sequence[int]) -> dict[int, str]:
        """Return what to call nodes that have not said whose they are.

        A SuperLink has names where the keys of SuperNodes were registered with some;
        the grid of an older flwr does not tell them.
        """
        infos = self.grid.get_nodes() if hasattr(self.grid, "get_nodes") else ()
        named = {n.node_id: _name_of({"name": getattr(n, "name", "")}) for n in infos}
        labels = {node: f"node {node}" for node in nodes}
        return {
            n: f"{named[n]} ({s})" if named.get(n) else s for n, s in labels.items()
        }

    def _greeting(self, count: int, goes_on: bool = False) -> RecordDict:
        """Return the first message of the run to each of a number of parties."""
        terms = replace(self._terms, parties=count)
        values = flatten({"partition": self._partition, "terms": terms})
        more = {"goes_on": True} if goes_on else {}
        return pack(values, {"session": self.session, **more})

    def _greet_again(self) -> None:
        """Find the parties that were greeted before the server was restarted.

        Each repeats its first reply, and still has its keys or has lost them. Its node
        may be another one. Raises FederationError if other parties are connected, or if
        one has changed.
        """
        log.info("the run continues after %d round trips", self.checkpoint.held)
        nodes = self._wait_for_nodes(len(self), " with which it began")
        unnamed = self._registered(nodes)
        contents = dict.fromkeys(nodes, self._greeting(len(nodes), goes_on=True))
        sent = self._exchange(hello.action, contents, unnamed, Checkpoint())
        where: dict[str, int] = {}
        for node, (reply, *_) in zip(nodes, sent, strict=True):
            name = _name_of(reply) or f"party-{reply.get('index')}"
            if (before := self._greeted.get(name)) is None or name in where:
                raise FederationError(
                    f"the run continues with the parties with which it started, and "
                    f"{name!r} is none of them"
                )
            said = {"state_key": before.get("state_key"), **reply}
            if changed := [key for key in before if before[key] != said.get(key)]:
                lost = "public_key" in changed
                what = "lost the state of the run" if lost else f"another {changed[0]}"
                raise FederationError(
                    f"the run cannot go on: {name!r} has {what}; begin a new one"
                )
            where[name] = node
        self.ledger.rename({unnamed[node]: name for name, node in where.items()})
        self._infos = [replace(info, node_id=where[info.name]) for info in self]
        self._greeted = {}

    def _check_consent(self, lacks: Mapping[str, Sequence[str]]) -> None:
        """Raise ``FederationError`` where a party refuses what the run needs."""
        refusing = {name: lines for name, lines in lacks.items() if lines}
        if refusing:
            which = "; ".join(
                f"the consent.toml of {name!r} would need {', '.join(lines)}"
                for name, lines in refusing.items()
            )
            said = [f"{len(refusing)} of {len(lacks)} parties refuse the run: {which}"]
            if any("[leaves]" in lines for lines in refusing.values()):
                said.append(self._terms.less)
            if len(lacks) == 2 and self._terms.computing is not None:
                said.append(OF_TWO)
            raise FederationError(". ".join(filter(None, said)))


@shapes_only
@dataclass(frozen=True)
class _Blocks:
    """Digests of what each party alone is told, and their salts, if there are any."""

    digests: bytes | None = None
    salts: Sequence[bytes] = ()


@shapes_only
@dataclass(frozen=True)
class _Reply(Generic[R]):
    """What one party has sent: in the clear, under masks, and for other parties."""

    values: R
    hidden: Arrays
    secrets: Mapping[str, Mapping[int, Array]]
    clipped: bytes | None


def _named(failure: PartyFailed) -> PartyFailed:
    """Return a failure in ``hello`` under the name that the party gives in it."""
    match = re.search(r"\bparty '([^']+)'", failure.reason)
    if match is None or _name_of({"name": match[1]}) != match[1]:
        away = failure.reason.startswith(("not connected", "no reply"))
        if not away or all(name != f"node {n}" for n, name in failure.nodes.items()):
            return failure
        reason = f"{failure.reason} (whose node it is: flwr supernode list)"
        return PartyFailed(failure.party, failure.action, reason, failure.nodes)
    name, reason = match[1], failure.reason.removeprefix(f"{match[0]}: ")
    return PartyFailed(name, failure.action, reason, dict.fromkeys(failure.nodes, name))


def _of_reply(kind: type[T], reply: Mapping[str, Any]) -> T:
    """Return the dataclass of some of the values of a reply."""
    names = {field.name for field in fields(cast(Any, kind))}
    return kind(**{name: value for name, value in reply.items() if name in names})


def _name_of(reply: Mapping[str, Any]) -> str:
    """Return the name that a party gives, if a log or an error can show it, or ""."""
    name = reply.get("name")
    return str(name) if is_name(name) else ""


def _check_elements(name: str, array: Array, adding: Group) -> None:
    """Raise unless an array has elements of a group; elsewhere any number is one."""
    if isinstance(adding, Field) and (array >= adding.p).any():
        raise ContractError(f"{name!r} must hold elements below {adding.p}")
    if not adding.protects and not np.isfinite(array).all():
        raise ContractError(f"{name!r} must hold finite numbers")


def _check_named(args: tuple[object, ...]) -> None:
    if args:
        raise TypeError("the parameters of a step must be given by name")


def _split(
    j: int, values: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, list[Seal]]]:
    """Return the values of a message to party j, and how to open what is sealed."""
    content: dict[str, Any] = {}
    seals: dict[str, list[Seal]] = {}
    for name, value in values.items():
        if not isinstance(value, Sealed):
            content[name] = value
            continue
        if value.to != j:
            raise ValueError(f"{name} is sealed for party {value.to}, not {j}")
        seals[name] = list(value.seals)
        content |= {f"{name}.{k}": part for k, part in enumerate(value.parts)}
    return content, seals
