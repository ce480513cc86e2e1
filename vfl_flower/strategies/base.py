"""A Flower strategy whose rounds are a protocol, written from top to bottom."""

from __future__ import annotations

import inspect
import logging
import math
import secrets
import zlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from vfl_flower.ledger import Ledger
from vfl_flower.models import Model
from vfl_flower.strategies.exchange import FederationError, PartyFailed
from vfl_flower.strategies.parties import Parties
from vfl_flower.typing import Values

log = logging.getLogger("vfl_flower")

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]

MASKINGS = ("ring", "plain")


@dataclass(repr=False)
class ProtocolResult(Result):
    """Flower's ``Result`` with the model and what it cost.

    Attributes
    ----------
    model : Model
        The trained model, with ``predict``, ``save`` and ``load``.
    ledger : Ledger
        Round trips, bytes, scalars and seconds, of everything.
    evaluation : Ledger
        Those of `ledger` that only evaluated the model.
    seed : int or None
        The seed that was given: with it the run repeats.
    """

    model: Model = field(kw_only=True)
    ledger: Ledger = field(kw_only=True)
    evaluation: Ledger = field(kw_only=True)
    seed: int | None = field(kw_only=True)

    @property
    def metrics(self) -> dict[str, Any]:
        """The metrics of the last recorded iteration."""
        last = max(self.train_metrics_clientapp)
        return dict(self.train_metrics_clientapp[last])


class Run:
    """What a protocol is given besides the parties: its randomness and its record.

    Attributes
    ----------
    seed : int
        Seed of the run.
    missing : list of str
        Parties that failed, without which the run has begun again.
    begun : list of str
        Numbers of models that the run has begun, this and the given up ones; a protocol
        that needs them adds its own.
    final : bool
        Set by a protocol that must not begin again, although `allow_missing` says so.
    """

    def __init__(
        self,
        seed: int,
        evaluate_fn: EvaluateFn | None = None,
        missing: Sequence[str] = (),
        begun: list[str] | None = None,
    ) -> None:
        self.seed, self.missing = seed, list(missing)
        self.begun, self.final = [] if begun is None else begun, False
        self._evaluate_fn = evaluate_fn
        self.train_metrics: dict[int, MetricRecord] = {}
        self.evaluate_metrics: dict[int, MetricRecord] = {}

    def rng(self, stream: str) -> np.random.Generator:
        """Return the server's generator of one named stream."""
        entropy = [self.seed, zlib.crc32(b"server"), zlib.crc32(stream.encode())]
        return np.random.default_rng(np.random.SeedSequence(entropy))

    def record(
        self, iteration: int, arrays: ArrayRecord, metrics: dict[str, Any] | None = None
    ) -> None:
        """Keep the metrics of an outer iteration and call ``evaluate_fn`` on its model.

        Parameters
        ----------
        iteration : int
            0 for the model before training, then as the protocol counts.
        arrays : ArrayRecord
            The model as it is now.
        metrics : dict
            Numbers by name; they become ``Result.train_metrics_clientapp``.
        """
        if metrics is not None:
            self.train_metrics[iteration] = MetricRecord(metrics)
        if self._evaluate_fn is not None:
            found = self._evaluate_fn(iteration, arrays)
            if found is not None:
                self.evaluate_metrics[iteration] = found


class ProtocolStrategy(Strategy):
    """Base of the package's strategies; goes wherever a Flower strategy goes.

    A subclass writes :meth:`protocol`; its locals are the state, one call to
    ``parties`` is one round trip, and the four hooks of a round-based strategy have
    no place in it.

    Parameters
    ----------
    masking : {"ring", "plain"}
        How sums over parties are hidden; parties refuse ``"plain"`` outside tests.
    n_parties : int
        How many parties to wait for; 0: those that are connected, at least two.
    seed : int, optional
        Seed of all draws, so that the run repeats. The server and the other parties
        know it, so the rows that a party draws tell more of its scores; by default the
        parties draw from their operating system. Keys and masks never depend on it.
    """

    model_class: type[Model]
    maskings: tuple[str, ...] = MASKINGS
    partition = "vertical"
    """What parties hold: other columns ("vertical"), or other rows ("horizontal")."""
    allow_missing = False
    """Whether a run begins again without a party that failed."""
    evaluation_actions: tuple[str, ...] = ()
    """Steps that evaluate the model and do not train it."""

    def __init__(
        self, *, masking: str = "ring", n_parties: int = 0, seed: int | None = None
    ) -> None:
        check_choice("masking", masking, self.maskings)
        check_whole("n_parties", n_parties, 0)
        check_seed(seed)
        self.masking, self.n_parties, self.seed = masking, n_parties, seed
        if 0 < n_parties < self.least_parties:
            raise ValueError(
                f"n_parties must be 0 or at least {self.least_parties}, got {n_parties}"
            )

    @abstractmethod
    def protocol(self, parties: Parties, run: Run) -> ArrayRecord:
        """Train, and return the model's arrays.

        Parameters
        ----------
        parties : Parties
            Already greeted, in order of their index.
        run : Run
            Randomness and record of this run.
        """

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> ProtocolResult:
        """Run the protocol.

        Parameters
        ----------
        grid : Grid
            Where the parties are.
        initial_arrays, num_rounds, train_config, evaluate_config : None
            A protocol has its own start, rounds and settings; anything else than None
            (or an empty record) raises.
        timeout : float
            Seconds that one round trip may take, and that parties may take to connect.
        evaluate_fn : callable, optional
            Called with (iteration, arrays) for iteration 0 and each recorded one; make
            the model of `arrays` with ``strategy.model_class.from_arrays``.

        Returns
        -------
        ProtocolResult
            Flower's result, with ``model`` and ``ledger``.

        Raises
        ------
        FederationError
            The parties do not fit together.
        PartyFailed
            A party failed; the run ends, nothing is filled in for it.
        ValueError
            An argument that a protocol cannot honour, or a timeout <= 0.
        """
        for name, value in (
            ("initial_arrays", initial_arrays),
            ("train_config", train_config),
            ("evaluate_config", evaluate_config),
        ):
            if value:
                raise ValueError(
                    f"{name} must be None: {type(self).__name__} takes its settings as "
                    "arguments of its constructor"
                )
        if num_rounds is not None:
            raise ValueError(
                f"num_rounds must be None, got {num_rounds}: the protocol of "
                f"{type(self).__name__} sets its own number of round trips"
            )
        if isinstance(timeout, str) or not timeout > 0:
            raise ValueError(f"timeout must be more than 0 seconds, got {timeout}")
        self.summary()
        self.check()
        seed = secrets.randbits(63) if self.seed is None else self.seed
        ledger, missing, failed = Ledger(), dict[int, str](), ""
        begun: list[str] = []
        while True:
            run = Run(seed, evaluate_fn, list(missing.values()), begun)
            try:
                parties = Parties(
                    grid,
                    ledger,
                    seed=seed,
                    private_draws=self.seed is None,
                    timeout=timeout,
                    masking="plain" if self.masking == "plain" else "ring",
                    n_parties=self.n_parties,
                    least=self.least_parties,
                    partition=self.partition,
                    without=list(missing),
                    frame=self.frame(),
                )
                arrays = self.protocol(parties, run)
                break
            except PartyFailed as failure:
                if not self.allow_missing or not failure.nodes or run.final:
                    raise
                log.warning("%s; the run begins again without it", failure)
                missing |= failure.nodes
                failed = str(failure)
            except FederationError as error:
                if not failed:
                    raise
                raise FederationError(
                    f"{error}; before that, {failed}, and the run began again without "
                    f"{', '.join(missing.values())}"
                ) from None
        return ProtocolResult(
            arrays=arrays,
            train_metrics_clientapp=run.train_metrics,
            evaluate_metrics_serverapp=run.evaluate_metrics,
            model=self.model_class.from_arrays(arrays),
            ledger=ledger,
            evaluation=ledger.of(*self.evaluation_actions),
            seed=self.seed,
        )

    def check(self) -> None:
        """Raise before any message where the strategy cannot run."""
        check_seed(self.seed)

    @property
    def least_parties(self) -> int:
        """The fewest parties that make a run."""
        return 2

    def frame(self) -> Values:
        """Return what every message of the run tells the parties."""
        return {}

    def settings(self) -> dict[str, Any]:
        """Return the constructor's arguments by name, as this strategy has them."""
        names = inspect.signature(type(self)).parameters
        return {name: getattr(self, name) for name in names}

    def shown(self) -> dict[str, Any]:
        """Return the settings as a log may have them."""
        return self.settings()

    def summary(self) -> None:
        """Log the settings of the strategy."""
        settings = ", ".join(f"{k}={v!r}" for k, v in self.shown().items())
        log.info("%s(%s)", type(self).__name__, settings)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Raise: a protocol has no rounds that Flower could configure."""
        self._no_hook("configure_train")

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Raise: a protocol has no rounds that Flower could aggregate."""
        self._no_hook("aggregate_train")

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Raise: a protocol has no rounds that Flower could configure."""
        self._no_hook("configure_evaluate")

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Raise: a protocol has no rounds that Flower could aggregate."""
        self._no_hook("aggregate_evaluate")

    def _no_hook(self, hook: str) -> NoReturn:
        raise NotImplementedError(
            f"{type(self).__name__} is one protocol and has no {hook}: call "
            "start(grid) instead"
        )


def check_choice(name: str, value: str, choices: Iterable[str]) -> None:
    """Raise ``ValueError`` unless `value` is one of `choices`."""
    if value not in tuple(choices):
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def check_flags(strategy: object, *names: str) -> None:
    """Raise ``ValueError`` unless these attributes are true or false."""
    for name in names:
        value = getattr(strategy, name)
        if not isinstance(value, (bool, np.bool_)):
            raise ValueError(f"{name} must be True or False, got {value!r}")


def check_bits(bits: int) -> None:
    """Raise ``ValueError`` unless an angle can have this number of bits."""
    if not isinstance(bits, (int, np.integer)) or bits not in (16, 32):
        raise ValueError(f"bits must be 16 or 32, got {bits!r}")


def is_number(value: object) -> bool:
    """Return whether `value` is a real number; True and False are none."""
    kinds = (int, float, np.integer, np.floating)
    return isinstance(value, kinds) and not isinstance(value, bool)


def check_at_least(name: str, value: float, least: float) -> None:
    """Raise ``ValueError`` unless `value` is a finite number of at least `least`."""
    if not is_number(value):
        raise ValueError(f"{name} must be a number, got {value!r}")
    if not least <= value < 1e100:
        raise ValueError(f"{name} must be at least {least} and finite, got {value}")


def check_whole(name: str, value: int, least: int) -> None:
    """Raise ``ValueError`` unless `value` is a whole number of at least `least`."""
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not whole or value < least:
        raise ValueError(f"{name} must be a whole number from {least}, got {value!r}")


def check_fraction(name: str, value: float) -> None:
    """Raise ``ValueError`` unless `value` is a number from 0 to less than 1."""
    if not is_number(value) or not 0 <= value < 1:
        raise ValueError(f"{name} must be in [0, 1), got {value!r}")


def check_seed(seed: int | None) -> None:
    """Raise ``ValueError`` unless `seed` is None or a whole number below 2^63."""
    if seed is not None:
        check_whole("seed", seed, 0)
        if seed >= 2**63:
            raise ValueError(f"seed must be below 2^63, got {seed}")


def check_positive(name: str, value: float | str, word: str | None = None) -> None:
    """Raise ``ValueError`` unless `value` is a positive number or the one word."""
    if isinstance(value, str) and value == word:
        return
    if not is_number(value) or not 0 < float(value) < math.inf:
        other = f"{word!r} or " if word else ""
        raise ValueError(f"{name} must be {other}a number above 0, got {value!r}")


def check_unchanged(strategy: type, arguments: Mapping[str, Any], where: str) -> None:
    """Raise ``ValueError`` where an argument that has no effect was changed."""
    defaults = inspect.signature(strategy).parameters
    for name, value in arguments.items():
        if value != defaults[name].default:
            raise ValueError(f"{name} has no effect with {where}, got {value!r}")
