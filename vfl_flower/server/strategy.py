"""A Flower strategy that runs a protocol written as a single method."""

from __future__ import annotations

import logging
import time
import zlib
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, ClassVar, Literal, NoReturn, Protocol, Self

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from vfl_flower.models.base import Model
from vfl_flower.party.memory import Memory
from vfl_flower.protocol.errors import FederationError
from vfl_flower.protocol.settings import Count, Seed, settings, settings_of, values_of
from vfl_flower.protocol.steps import Step, Steps
from vfl_flower.protocol.terms import LEAST_ROWS, Terms
from vfl_flower.server.checkpoint import Checkpoint
from vfl_flower.server.exchange import Exchange
from vfl_flower.server.ledger import Ledger
from vfl_flower.server.metrics import Metric
from vfl_flower.server.parties import Parties
from vfl_flower.server.replies import PartyInfo
from vfl_flower.typing import Array

log = logging.getLogger("vfl_flower")

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]
Traces = dict[str, list[tuple[int, int, float]]]


@dataclass(repr=False, kw_only=True)
class ProtocolResult(Result):
    """Flower's ``Result`` with the model and its costs.

    Attributes
    ----------
    model : Model
        The trained model, with ``predict``, ``save`` and ``load``.
    ledger : Ledger
        Round trips, bytes, scalars and seconds of the whole run.
    evaluation : Ledger
        Costs of the steps that only evaluate the model; `ledger` includes them.
    seed : int or None
        The given seed, with which the run can be repeated.
    strategy : ProtocolStrategy
        The strategy that was run, with its settings.
    parties : tuple of PartyInfo
        The parties that took part, in party order.
    seconds : float
        Time from the start to the end of the run in this process.
    traces : dict of str to list of (int, int, float)
        The course of an iterative solver: for each metric, its values, each with the
        numbers of round trips and bytes so far.
    warnings : tuple of str
        Reasons why the model may be worse than expected, such as a solver that did not
        converge.
    curves : mapping of str to sequence
        Data for pictures of the model, bin by bin; empty if there are none. See
        ``docs/simulate.md``.

    Examples
    --------
    >>> import numpy as np
    >>> import vfl_flower as vf
    >>> ids = np.arange(30)
    >>> parties = [vf.Party(np.zeros((25, 1)), ids=ids[j : j + 25]) for j in (0, 5)]
    >>> result = vf.simulate(vf.Alignment("rows"), parties)
    >>> result.metrics["common"], [info.name for info in result.parties]
    (20, ['party-0', 'party-1'])
    """

    model: Model
    ledger: Ledger
    evaluation: Ledger
    seed: int | None
    strategy: ProtocolStrategy
    parties: tuple[PartyInfo, ...]
    seconds: float = 0.0
    traces: Traces = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    curves: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    @property
    def metrics(self) -> dict[str, Any]:
        """The metrics of the last recorded iteration."""
        recorded = self.train_metrics_clientapp
        return dict(recorded[max(recorded)])


@dataclass(eq=False, repr=False)
class Run:
    """The randomness and the record of a protocol.

    A protocol sets `curves`, the data for pictures of the model, and adds `warnings`:
    reasons why the result may be worse than expected.
    """

    seed: int
    evaluate_fn: EvaluateFn | None = None
    ledger: Ledger = field(default_factory=Ledger)
    traces: Traces = field(default_factory=dict)
    train_metrics: dict[int, MetricRecord] = field(default_factory=dict)
    evaluate_metrics: dict[int, MetricRecord] = field(default_factory=dict)
    curves: dict[str, list[Any]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def rng(self, stream: str) -> np.random.Generator:
        """Return the server's random generator for one named stream."""
        entropy = [self.seed, zlib.crc32(b"server"), zlib.crc32(stream.encode())]
        return np.random.default_rng(np.random.SeedSequence(entropy))

    def record(
        self, iteration: int, arrays: ArrayRecord, metrics: dict[str, Any] | None = None
    ) -> None:
        """Store the metrics of an iteration and call ``evaluate_fn`` on its model.

        `iteration` is 0 before training. The metrics become
        ``train_metrics_clientapp``.
        """
        if metrics is not None:
            plain = {n: np.asarray(value).tolist() for n, value in metrics.items()}
            self.train_metrics[iteration] = MetricRecord(plain)
        if self.evaluate_fn is not None:
            evaluated = self.evaluate_fn(iteration, arrays)
            if evaluated is not None:
                self.evaluate_metrics[iteration] = evaluated

    def trace(self, name: str, value: float) -> None:
        """Store a solver's value of a metric, with the costs of the run so far."""
        sent = self.ledger.bytes_up + self.ledger.bytes_down
        point = (self.ledger.round_trips, sent, float(value))
        self.traces.setdefault(name, []).append(point)


class Watch(Protocol):
    """Observer of a run's progress."""

    def greeted(
        self, strategy: ProtocolStrategy, parties: Parties, ledger: Ledger
    ) -> None:
        """Report that the parties have answered ``hello``."""

    def round_trip(self, ledger: Ledger, action: str) -> None:
        """Report that the parties have answered a step."""


@settings
class ProtocolStrategy(Strategy):
    """Base class of the package's strategies, for use wherever Flower accepts one.

    A subclass declares its settings (:mod:`vfl_flower.protocol.settings`) and
    implements :meth:`protocol`. The local variables of this method are the state, and
    each call to ``parties`` is one round trip. The four hooks of a round-based strategy
    are not used.

    Examples
    --------
    >>> import numpy as np
    >>> import vfl_flower as vf
    >>> from vfl_flower.simulation import InProcessGrid
    >>> ids = np.arange(30)
    >>> parties = [vf.Party(np.zeros((25, 1)), ids=ids[j : j + 25]) for j in (0, 5)]
    >>> grid = InProcessGrid(parties)  # in a ServerApp: Flower's grid
    >>> vf.Alignment("rows").start(grid).model.n_common_
    20
    """

    _: KW_ONLY
    masking: Literal["ring", "plain"] = "ring"
    """How sums over parties are hidden; parties refuse "plain" outside tests."""
    n_parties: Count = 0
    """Number of parties to wait for; 0 means all connected parties, but at least
    two."""
    seed: Seed | None = None
    """Seed of all draws; the same seed repeats the run. The server and the other
    parties know the seed, so the rows that a party draws reveal more about its scores.
    Without a seed, each party draws from its operating system. Keys and masks never
    depend on the seed."""

    task: ClassVar[str] = "train"  # name of its task in the run config
    model_class: ClassVar[type[Model]]  # class of the model that it trains or uses
    partition = "vertical"
    """How data are split over parties: by columns ("vertical"), by rows ("horizontal"),
    or in either way ("either")."""
    encodes: ClassVar[bool] = True
    """Whether a party may use all of its rows to encode its columns: to list the levels
    of a text column, or to replace a missing value with the mean."""
    fills: ClassVar[bool] = False
    """Whether missing values of split rows are replaced with means over all parties."""
    resumable: ClassVar[bool] = True
    """Whether a killed run can resume; otherwise the next run completes it."""
    steps: ClassVar[Steps] = ()
    """All steps that the strategy requests, in the order of the protocol."""
    evaluation_steps: ClassVar[tuple[Step[..., Any], ...]] = ()
    """Steps that only evaluate the model."""
    labelled: ClassVar[bool] = False  # whether it learns from labels
    numeric: ClassVar[bool] = False  # whether labels must always be numbers
    question: ClassVar[str] = ""
    """The title of the report; "{label}" stands for the name of the label column."""
    explained: ClassVar[Mapping[str, Metric]] = {}  # what its metrics mean, by name
    _watch: ClassVar[Watch | None] = None

    def __post_init__(self) -> None:
        """Raise ``ValueError`` if settings do not fit together."""
        least, count = self.least_parties, self.n_parties
        if 0 < count < least:
            raise ValueError(f"n_parties must be 0 or at least {least}, got {count}")

    @abstractmethod
    def protocol(self, parties: Parties, run: Run) -> ArrayRecord:
        """Train with the parties, in order of index; return the model's arrays."""

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
        *,
        checkpoint: Checkpoint | None = None,
    ) -> ProtocolResult:
        """Run the protocol.

        Parameters
        ----------
        grid : Grid
            Flower's grid, through which the server reaches the parties.
        initial_arrays, num_rounds, train_config, evaluate_config : None
            A protocol has its own start, rounds and settings; anything but None (or an
            empty record) raises ValueError.
        timeout : float
            Seconds that one round trip may take, and that parties may take to connect.
        evaluate_fn : callable, optional
            Called with (iteration, arrays) for iteration 0 and each recorded iteration;
            ``strategy.model_class.from_arrays`` makes a model from `arrays`.
        checkpoint : Checkpoint, optional
            Stores the progress of the run, so that it can resume if it is killed.

        Returns
        -------
        ProtocolResult
            Flower's result, with ``model`` and ``ledger``.

        Raises
        ------
        FederationError
            The parties are incompatible.
        PartyFailed
            A party failed; the run ends, and the party's values are not replaced.
        ValueError
            An argument that a protocol cannot honour, a timeout <= 0, or a setting that
            was changed to an invalid value.
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
        self.replace()  # raises if a setting was changed to an invalid value
        self.summary()
        self.check()
        checkpoint = checkpoint or Checkpoint()
        seed = checkpoint.seed if self.seed is None else self.seed
        began = time.monotonic()
        watch = self._watch
        ledger = Ledger(watch=None if watch is None else watch.round_trip)
        run = Run(seed, evaluate_fn, ledger)
        parties = self.greet(Exchange(grid, ledger, timeout, checkpoint))
        try:
            if watch is not None:
                watch.greeted(self, parties, ledger)
            arrays = self.protocol(parties, run)
        except Exception as error:
            parties.leave_checkpoint()
            self.give_up(parties, error)
            raise
        ledger.watch = None
        if recorded := run.train_metrics:
            run.warnings += self.shortfalls(dict(recorded[max(recorded)]))
        for warning in run.warnings:
            log.warning("warning: %s", warning)
        return ProtocolResult(
            arrays=arrays,
            train_metrics_clientapp=run.train_metrics,
            evaluate_metrics_serverapp=run.evaluate_metrics,
            model=self.model_class.from_arrays(arrays),
            ledger=ledger,
            evaluation=ledger.of(*(step.action for step in self.evaluation_steps)),
            seed=self.seed,
            strategy=self,
            parties=tuple(parties),
            seconds=time.monotonic() - began,
            traces=run.traces,
            warnings=tuple(run.warnings),
            curves=run.curves,
        )

    def give_up(self, parties: Parties, error: Exception) -> None:
        """Clean up after a failed protocol; no checkpoint records these requests."""

    def greet(self, exchange: Exchange) -> Parties:
        """Greet the parties; raise FederationError if they refuse or do not match."""
        parties = Parties(
            exchange,
            seed=self.seed,
            masking=self.masking,
            n_parties=self.n_parties,
            partition=self.partition,
            model=self.works_with,
            columns=self.columns,
            steps=self.steps,
            terms=replace(self.terms, parties=self.least_parties),
        )
        if parties.gaps and not self.fills:
            raise FederationError(
                f"a party's data have missing values, which {type(self).__name__} does "
                "not fill: set impute to 'none' to see which party has them"
            )
        return parties

    def rehearsed(self) -> Self:
        """Return the strategy for a rehearsal, in which columns have no names."""
        return self.replace()

    def check(self) -> None:
        """Raise an error, before any message is sent, if the strategy cannot run."""

    @property
    def least_parties(self) -> int:
        """Minimum number of parties of a run."""
        return 2

    def check_count(self, count: int) -> None:
        """Raise ``ValueError`` if a run with `count` parties is not allowed."""
        if count < self.least_parties:
            rule = f"needs at least {self.least_parties} parties"
            raise ValueError(f"{type(self).__name__} {rule}, got {count}")
        if self.n_parties not in (0, count):
            rule = f"must be 0 or {count}, the number of parties"
            raise ValueError(f"n_parties {rule}, got {self.n_parties}")

    def fewest_rows(self, columns: int) -> int:
        """Return the minimum number of rows for a run with this number of columns."""
        return LEAST_ROWS

    @property
    def repeats(self) -> bool:
        """Whether runs with equal seeds agree to the last digit."""
        return True

    @property
    def terms(self) -> Terms:
        """The values that a run with these settings requests, besides sums."""
        return Terms()

    @property
    def works_with(self) -> str | None:
        """Id of the model whose local models the parties load, or None."""
        return None

    @property
    def columns(self) -> Sequence[str]:
        """Digests of the column names of a trained model, in order."""
        return ()

    @property
    def enough_rows(self) -> int | None:
        """Number of rows above which a plan's costs stay the same, or None."""
        return None

    def trade(self, n_rows: int) -> str:
        """Explain in sentences which settings change the figures of a plan."""
        return ""

    def scaled(self, share: float) -> Self:
        """Return a strategy that needs the same number of messages for fewer rows."""
        return self

    def random_rows(
        self, rng: np.random.Generator, n_rows: int, n_columns: int
    ) -> Array:
        """Return random rows that the strategy accepts, for a rehearsal."""
        return rng.uniform(-0.5, 0.5, size=(n_rows, n_columns))

    def shortfalls(self, metrics: Mapping[str, Any]) -> list[str]:
        """Return reasons, from a model's metrics, why it may be worse than expected."""
        if metrics.get("converged", 1.0) == 1.0:
            return []
        return ["the solver stopped before it converged: the model is not the optimum"]

    def watched_by(self, watch: Watch) -> Self:
        """Report the progress of runs of this strategy to `watch`; return self."""
        vars(self)["_watch"] = watch
        return self

    @property
    def variant(self) -> str:
        """Name of the result in a report that compares results."""
        return self.task

    def baselines(self) -> dict[str, ProtocolStrategy]:
        """Return the strategies that a run with ``compare`` adds, by their names."""
        return {}

    def complete(self, model: Model, memories: Sequence[Memory]) -> None:
        """Add the parties' local models to the model, if all are in this process."""

    def replace(self, **settings: Any) -> Self:
        """Return the strategy with some settings changed."""
        return type(self)(**values_of(self) | settings)

    def summary(self) -> None:
        """Log the settings that differ from the defaults, without secrets."""
        shown = ", ".join(
            f"{setting.name}={value!r}"
            for setting in settings_of(type(self))
            if repr(value := getattr(self, setting.name)) != repr(setting.default)
        )
        log.info("%s(%s)", type(self).__name__, shown)

    def _no_hook(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise, because a protocol has no rounds that Flower could configure."""
        reason = "is one protocol without rounds: call start(grid)"
        raise NotImplementedError(f"{type(self).__name__} {reason}")

    configure_train = aggregate_train = _no_hook
    configure_evaluate = aggregate_evaluate = _no_hook
