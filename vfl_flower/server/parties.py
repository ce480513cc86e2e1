"""The parties of a run, as the server sees them: each call is one round trip."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast, overload

import numpy as np

from vfl_flower.party.columns import ColumnKind, Declared
from vfl_flower.party.identity import Credential, pack_credentials
from vfl_flower.protocol import contract
from vfl_flower.protocol.common import has_own, own_digest
from vfl_flower.protocol.errors import FederationError, PartyFailed
from vfl_flower.protocol.frame import MOST_CLIPPED, Frame, SumRequest
from vfl_flower.protocol.messages import pack
from vfl_flower.protocol.seals import Seal, Sealed, split
from vfl_flower.protocol.steps import Each, P, Question, R, Step, Sum
from vfl_flower.protocol.terms import Kind, Terms
from vfl_flower.secure_aggregation.groups import Group, Plain, Ring, group
from vfl_flower.secure_aggregation.masks import unmask_sum
from vfl_flower.secure_aggregation.trees import Tree
from vfl_flower.server.agreement import agree, how_matched
from vfl_flower.server.checkpoint import Checkpoint
from vfl_flower.server.exchange import Exchange, Opened
from vfl_flower.server.greeting import Greeter, from_reply
from vfl_flower.server.ledger import Seen
from vfl_flower.server.replies import PartyInfo, Replies, Reply, checked
from vfl_flower.shapes import shapes_only
from vfl_flower.typing import Array, Arrays

log = logging.getLogger("vfl_flower")

SALT_BYTES = 16  # bytes of the salt of a digest
WIDER = 2.0**20  # factor by which the next request widens a bound that clipped values
MOST_BOUND = 1e200  # no value that a party computes in floats is larger


Request = Mapping[str, Any]
"""The values of a request to one party, by the names of a step's parameters."""


class Parties(Sequence[PartyInfo]):
    """The parties of one run, in index order; sends all requests to them.

    The constructor makes the first round trip, ``hello``; the keys of all parties are
    sent with the next message. Without a `seed`, the parties draw from their operating
    systems. If `n_parties` is 0, all connected parties take part, and at least
    ``terms.parties`` must be connected. The parties load their local models of `model`,
    whose columns have the order `columns` (by default the first party's order). If
    `steps` are given, no other step may be requested.

    `session` is the random 63-bit number of this session, and the id of the model that
    it trains. If the parties hold different rows, `columns` contains the digests of
    their column names in the common order (empty without names), `column_kinds` the
    kind of each column of a file, and `column_widths` the number of columns of X that
    each such column becomes; `gaps` states whether a party has missing values.

    Raises FederationError for fewer than two parties or for incompatible parties,
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
        self._exchange, self.grid = exchange, exchange.grid
        self.ledger, self.checkpoint = exchange.ledger, exchange.checkpoint
        self._seed = self.checkpoint.seed if seed is None else seed
        self._private_draws = seed is None
        self.session = self.checkpoint.number()
        self.masking, self._model = masking, model
        self._round = 0
        self._columns: list[str] | None = None
        self.columns, self.gaps = list(columns), False
        self.column_kinds: dict[str, ColumnKind] = {}
        self.column_widths: dict[str, int] = {}
        terms = replace(terms or Terms(), seeded=seed is not None)
        self._greeter = Greeter(exchange, self.session, partition, terms)
        self._greeter.greet(n_parties)
        replies = list(self._greeter.replies.values())
        names = list(self._greeter.names.values())
        compared = bool(replies[0]["ids_digest"])
        shared = f"row ids {'are the same' if compared else 'were not compared'}"
        if partition == "horizontal":
            shared = self._agree_on_columns(names, cast(list[Declared], replies))
        self._greeter.check_alike()
        self._infos = self._greeter.infos()
        log.info("%d parties: %s; %s", len(self), ", ".join(names), shared)
        self._peers = b"".join(reply["public_key"] for reply in replies)
        self._state_keys = [reply.get("state_key") for reply in replies]
        signing = ["identity" in reply for reply in replies]
        self._credentials: bytes | None = None
        if any(signing):
            credentials = [from_reply(Credential, reply) for reply in replies]
            self._credentials = pack_credentials(credentials)
        self._signed: dict[int, bytes] = {}  # signatures on the list of keys, by party
        self._unproven = set(range(len(self))) if any(signing) else set()
        self._last = [0] * len(self)  # round in which each party was last asked
        if not all(signing):
            self.checkpoint.remove()  # a party without a state-dir cannot resume
        self._resumed = self._greeter.from_checkpoint and all(signing)

    def _agree_on_columns(
        self, names: Sequence[str], replies: Sequence[Declared]
    ) -> str:
        """Store the columns of parties with different rows; describe their matching."""
        self._columns = agree(names, replies, self.columns)
        self.gaps = any(reply["gaps"] for reply in replies)
        named = next((reply for reply in replies if reply["columns"]), replies[0])
        digests = named["columns"]
        self.columns = self._columns or list(digests)
        self.column_kinds = dict(zip(digests, named["kinds"], strict=True))
        self.column_widths = dict(zip(digests, named["widths"], strict=True))
        if self._columns is not None:
            log.info("all parties reorder their columns to one common order")
        return how_matched(names, replies)

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
    def session_id(self) -> str:
        """The session in hexadecimal digits: the id of the trained model."""
        return f"{self.session:016x}"

    @property
    def n_rows(self) -> int:
        """Number of rows, n: at each party or, with split rows, in total."""
        if self._partition == "horizontal":
            return sum(info.n_rows for info in self)
        return self[0].n_rows

    @property
    def label_holders(self) -> list[int]:
        """Indices of the label holders; raises FederationError if there are none."""
        holders = [j for j, info in enumerate(self) if info.n_labels]
        if not holders:
            raise FederationError("a party must hold the labels, but none does")
        return holders

    @property
    def label_holder(self) -> int:
        """Index of the label holder; raises FederationError unless exactly one."""
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
                f"but {self.n_rows - holders[0].n_labels} are missing"
            )
        return self.label_holders[0]

    def let(self, kind: Kind, *places: int) -> bool:
        """Return whether parties permit an optional kind; log which parties do not."""
        names = [self[j].name for j in places if kind not in self[j].lets]
        if names:
            log.info(
                "the run has no %s: the consent.toml of %s would need '%s = true'",
                *(kind, ", ".join(map(repr, names)), kind),
            )
        return not names

    def refuse_two(self, what: str, allowed: bool) -> None:
        """Refuse a run with only two parties, because `what` reveals sums to them.

        Raises FederationError, or only logs a warning if two parties are `allowed`
        (``allow_two_parties``).
        """
        if len(self) > 2:
            return
        reason = (
            f"{what} reveals sums over all parties to each of them, and with only two "
            "parties, each sum reveals the other party's contribution"
        )
        if not allowed:
            raise FederationError(
                f"{reason}: use at least three parties, or set allow_two_parties "
                "(in a run config: allow-two-parties=true)"
            )
        log.warning("%s", reason)

    def hurry(self, seconds: float) -> None:
        """Lower the timeout of all later replies to `seconds`."""
        self._exchange.timeout = min(self._exchange.timeout, seconds)

    def leave_checkpoint(self) -> None:
        """Stop storing round trips in the checkpoint."""
        self._exchange.checkpoint = Checkpoint()

    def refused(self, j: int, step: Step[..., Any]) -> bool:
        """Return whether party `j` refused a step, and so executed none of it."""
        return self._exchange.refused(step.action, self[j].node_id)

    def ask(
        self, question: Question[P, R], *args: P.args, **values: P.kwargs
    ) -> Replies[R]:
        """Request a step from all parties in one round trip; return replies and sums.

        :meth:`Step.summing` requests sums of masked arrays, and
        :func:`~vfl_flower.protocol.steps.each` sends each party its own value of a
        parameter. Raises PartyFailed if a party refused, failed, sent a value that its
        step does not declare, or did not reply in time.
        """
        _check_named(args)
        replies = self._ask(question.step, question.sums, values)
        if replies.clipped:
            log.warning(
                "%d values of %s were clipped to the bound of their sum, so the sum is "
                "not exact",
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
        """Ask with guessed bounds, and with wider bounds if a value is clipped."""
        _check_named(args)
        sums, step = dict(question.sums), question.step
        while (replies := self._ask(step, sums, values)).clipped:
            if any(spec.bound > MOST_BOUND for spec in sums.values()):
                raise FederationError(
                    f"the absolute values of {step.action} must be below "
                    f"{MOST_BOUND:g}, but {replies.clipped} are not"
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
        self, step: Step[Any, R], sums: Mapping[str, Sum], values: Request
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
                    other = f"{self[0].name!r} sent shape {addends[0].shape}"
                    reason = f"{name!r} has shape {addend.shape}, but {other}"
                    raise self.failure(j, step, reason)
            if asked.to is None:
                result.sums[name] = self._sum_of(step, addends, adding)
            else:
                place = self._round, 0, asked.group, asked.bound
                seal = Seal("pad", step.action, name, *place)
                total = functools.reduce(adding.add, addends)
                result.sealed[name] = Sealed(asked.to, (total,), (seal,))
        return result

    def _sum_of(
        self, step: Step[..., Any], addends: list[Array], adding: Group
    ) -> Array:
        """Return a sum; raise FederationError if it is beyond its bound."""
        total = unmask_sum(addends, adding)
        if isinstance(adding, Ring | Plain):
            most = len(self) * adding.bound * (1 + 1e-9)
            if not np.abs(total).max(initial=0.0) <= most:
                raise self.faulty_sum(step, "numbers within their bound")
        return total

    def faulty_sum(self, step: Step[..., Any], rule: str) -> FederationError:
        """Return the error for a sum that breaks a rule; any party may be at fault."""
        names = ", ".join(repr(info.name) for info in self)
        return FederationError(
            f"in {step.action!r}, the parties' contributions must add up to {rule}, "
            f"but do not: one of {names} is faulty"
        )

    def _clipped(self, step: Step[..., Any], replies: Mapping[int, Reply[Any]]) -> int:
        """Count clipped values; raise FederationError if the masks do not cancel."""
        counts = [np.frombuffer(r.clipped or b"", "<u8") for r in replies.values()]
        total = unmask_sum(counts, group("ring", MOST_CLIPPED, len(self)))[0]
        sent = sum(a.size for reply in replies.values() for a in reply.hidden.values())
        if not 0 <= total <= sent:
            raise FederationError(
                f"the masks of {step.action} do not cancel: the request to one party "
                "differed from the other requests, or one party did not follow the "
                "protocol"
            )
        clips = self.ledger.clips
        clips[step.action] = clips.get(step.action, 0) + int(total)
        return int(total)

    def _requests(
        self, step: Step[..., Any], values: Request, bound: bool
    ) -> list[dict[str, Any]]:
        """Return each party's values; raise ValueError if common values differ."""
        fields = step.contract.request
        for name in values.keys() & fields.keys() if bound else ():
            common = fields[name].sending is None and fields[name].leaves is None
            if common and isinstance(values[name], Each):
                raise ValueError(
                    f"{name} must be the same for all parties of {step.action}: "
                    "otherwise, masks do not cancel and sealed bytes stay encrypted"
                )
        return [self._values_for(j, values) for j in range(len(self))]

    def _values_for(self, j: int, values: Request) -> dict[str, Any]:
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

    def _blocks(self, step: Step[..., Any], requests: Sequence[Request]) -> _Blocks:
        """Return the digests of the values sent to a single party, if there are any."""
        fields = step.contract.request
        if not has_own(fields):
            return _Blocks()
        salts = [self.checkpoint.token(SALT_BYTES) for _ in requests]
        pairs = zip(map(contract.flatten, requests), salts, strict=True)
        return _Blocks(b"".join(own_digest(fields, *pair) for pair in pairs), salts)

    def _secrets(
        self, step: Step[..., Any], replies: Mapping[int, Reply[Any]]
    ) -> dict[str, list[Any]]:
        """Return the encrypted values for other parties, as lists by recipient."""
        secrets: dict[str, list[Any]] = {}
        for sender, reply in replies.items():
            for name, parts in reply.secrets.items():
                leaves = step.contract.reply[name].leaves
                private = leaves == contract.PRIVATE
                if leaves == contract.SECRET and parts and name in secrets:
                    first = self[secrets[name].index(None)].name
                    reason = f"it sends the secret {name!r}, which {first!r} also sent"
                    raise self.failure(sender, step, reason)
                empty: list[Any] = [{} if private else None for _ in self]
                for to, part in parts.items():
                    sent = f"{name}_{to}" if private else name
                    seal = Seal("secret", step.action, sent, self._round, sender)
                    sealed = Sealed(to, (part,), (seal,))
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
        """Relay encrypted sums from party to party, to the root of each tree.

        One hop along all trees is one round trip. The root sends its own addend to
        itself. The step's parameter ``send`` gets the names of the arrays that a party
        must send. Raises PartyFailed as :meth:`ask` does, and ValueError if a tree
        lacks a party, since the masks of the other parties would not cancel.
        """
        _check_named(args)
        step, number = question.step, self._round + 1
        asked = {n: self._sum_request(spec, number) for n, (spec, _) in sums.items()}
        for name, (_, tree) in sums.items():
            if self._group(asked[name]).protects and len(tree.leaves) < len(self):
                raise ValueError(
                    f"the tree of {name!r} must have {len(self)} leaves, one for each "
                    f"party, got {len(tree.leaves)}: otherwise masks do not cancel"
                )
        inputs = self._requests(step, values, bound=True)
        blocks = self._blocks(step, inputs)
        arrived: dict[tuple[str, int], Sealed] = {}
        for hop in range(max([1, *(len(tree.hops) for _, tree in sums.values())])):
            edges: dict[tuple[str, int], int] = {}
            for name, (_, tree) in sums.items():
                pairs = [(tree.root, tree.root)] if hop == 0 else []
                pairs += tree.hops[hop] if hop < len(tree.hops) else ()
                edges |= {(name, sender): receiver for sender, receiver in pairs}
            requests: dict[int, dict[str, Any]] = {}
            wanted: dict[int, dict[str, SumRequest]] = {}
            for name, sender in sorted(edges, key=lambda edge: edge[1]):
                receiver = edges[name, sender]
                request = requests.setdefault(sender, inputs[sender] | {"send": []})
                request["send"].append(name)
                travels = replace(asked[name], relay=receiver)
                wanted.setdefault(sender, {})[name] = travels
                if sender != receiver and (name, sender) in arrived:
                    request[name] = arrived.pop((name, sender))
            replies = self._round_trip(step, requests, wanted, blocks)
            for (name, sender), receiver in edges.items():
                place = self._round, sender, asked[name].group, asked[name].bound
                seal = Seal("relay", step.action, name, *place)
                sealed = Sealed(receiver, (replies[sender].hidden[name],), (seal,))
                before = arrived.get((name, receiver))
                arrived[name, receiver] = sealed if before is None else before + sealed
        return {name: arrived[name, tree.root] for name, (_, tree) in sums.items()}

    def _sum_request(self, spec: Sum, number: int) -> SumRequest:
        where = spec.group or self.masking
        return SumRequest(number, float(spec.bound), where, spec.to)

    def _group(self, wanted: SumRequest) -> Group:
        return group(wanted.group, wanted.bound, len(self))

    def _round_trip(
        self,
        step: Step[Any, R],
        requests: Mapping[int, Request],
        sums: Mapping[int, Mapping[str, SumRequest]],
        blocks: _Blocks,
    ) -> dict[int, Reply[R]]:
        """Send each party its values with a frame, and return the checked replies."""
        if self._steps and step not in self._steps:
            raise ValueError(f"steps must list {step.action}, which was requested")
        if self._resumed and not self.checkpoint.ahead:
            where = self._greeter.find_again()
            self._infos = [replace(info, node_id=where[info.name]) for info in self]
            self._resumed = False
        sizes = {j: self._sizes(step, j, values) for j, values in requests.items()}
        contents = {
            j: split(contract.flatten(values), j) for j, values in requests.items()
        }
        nodes = {self[j].node_id: self[j].name for j in requests}
        messages = {}
        self._round += 1
        for j, (content, sealed) in contents.items():
            first = not self._last[j]
            frame = Frame(
                session=self.session,
                seed=self._seed,
                private_draws=self._private_draws,
                masking=self.masking,
                round=self._round,
                previous=self._last[j],
                parties=len(self),
                index=j,
                peers=self._peers if first else None,
                credentials=self._credentials if first else None,
                signed=None if first else self._signatures(j),
                model=self._model,
                columns=self._columns if first else None,
                blocks=blocks.digests,
                salt=blocks.salts[j] if blocks.salts else None,
                state_key=self._state_keys[j],
                sums=dict(sums.get(j, {})),
                sealed=sealed,
            )
            self._last[j] = self._round
            messages[self[j].node_id] = pack(content, frame.pack())
        arrived = self._exchange(step.action, messages, nodes)
        for j, reply in zip(requests, arrived, strict=True):
            if reply.signed is not None:
                self._signed[j] = reply.signed
        self._note(step, requests.values(), arrived)
        replies = {}
        for j, reply in zip(requests, arrived, strict=True):
            summed = sums.get(j, {})
            try:
                replies[j] = checked(step, j, len(self), sizes[j], summed, reply)
            except contract.ContractError as error:
                reason = f"its reply is malformed: {error}"
                raise self.failure(j, step, reason) from None
        return replies

    def _signatures(self, j: int) -> bytes | None:
        """Return all signatures for the second message to party j, or else None."""
        if j not in self._unproven or len(self._signed) < len(self):
            return None
        self._unproven.remove(j)
        return b"".join(self._signed[k] for k in range(len(self)))

    def _note(
        self, step: Step[..., Any], requests: Iterable[Request], replies: list[Opened]
    ) -> None:
        """Note in the ledger which declared values were sent."""
        seen = self.ledger.seen.setdefault(step.action, Seen())
        for values in requests:
            seen.request |= {n for n, v in values.items() if contract.flatten({n: v})}
            seen.kinds |= {r.kind for r in step.reveals if r.applies(values)}
        for reply in replies:
            # Some values are sent as several arrays: ``name_k`` or ``name.k``.
            heads = (re.split(r"[._]\d+$|\.", name)[0] for name in reply.values)
            seen.reply |= step.contract.reply.keys() & {*reply.values, *heads}

    def _sizes(self, step: Step[..., Any], j: int, values: Request) -> contract.Sizes:
        """Return the sizes that party j's reply to these values can refer to."""
        info = self[j]
        sizes = {"n_rows": info.n_rows, "n_columns": info.n_columns}
        sizes["n_parties"] = len(self)
        contract.learn_sizes(step.contract.request, values, sizes)
        return sizes

    def failure(self, j: int, step: Step[..., Any], reason: str) -> PartyFailed:
        """Return the error that says why party `j` failed in a step."""
        info = self[j]
        return PartyFailed(info.name, step.action, reason, {info.node_id: info.name})


@shapes_only
@dataclass(frozen=True)
class _Blocks:
    """Digests of the values sent to a single party, and their salts, if any."""

    digests: bytes | None = None
    salts: Sequence[bytes] = ()


def _check_named(args: tuple[object, ...]) -> None:
    if args:
        raise TypeError("the parameters of a step must be passed by name")
