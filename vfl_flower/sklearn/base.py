"""Base classes of the estimators: one X, split over parties in this process."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import chain
from numbers import Integral
from types import MappingProxyType
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, is_regressor
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from vfl_flower.models.base import check_blocks
from vfl_flower.party.party import Party
from vfl_flower.protocol.normal import normal_text
from vfl_flower.protocol.settings import Documented, settings_of
from vfl_flower.rows import check_index, indexed, is_whole, number_array
from vfl_flower.server.exchange import FederationError
from vfl_flower.server.strategy import ProtocolResult, ProtocolStrategy
from vfl_flower.simulation import simulate
from vfl_flower.typing import Array

E = TypeVar("E", bound="Estimator")

OF_A_RUN = ("seed", "n_parties")
"""Settings that ``random_state`` and X determine."""


def estimates(
    strategy: type[ProtocolStrategy],
    changed: Mapping[str, Any] = MappingProxyType({}),
    **fixed: Any,
) -> Callable[[type[E]], type[E]]:
    """Add a strategy's settings to the arguments of an estimator's constructor.

    A dataclass generates the constructor, whose signature lists every argument, as
    scikit-learn requires. The strategy's constructor checks the arguments, in ``fit``.
    `changed` replaces some of the defaults. The estimator itself sets the `fixed`
    settings to the given values; ``...`` means that ``fit`` sets the value.
    """

    def decorate(cls: type[E]) -> type[E]:
        excluded = {*OF_A_RUN, *fixed}
        taken = [s for s in settings_of(strategy) if s.name not in excluded]
        names = [setting.name for setting in taken]
        cls.__annotations__ = inspect.get_annotations(cls) | dict.fromkeys(names, Any)
        for setting in taken:
            setattr(cls, setting.name, changed.get(setting.name, setting.default))
        cls._strategy, cls._names, cls._fixed = strategy, names, fixed
        made: Any = dataclass(kw_only=True, eq=False, repr=False)(cls)
        made.__doc__ = Documented(made.__doc__ or "", strategy, excluded)
        return made  # type: ignore[no-any-return]

    return decorate


@dataclass(kw_only=True, eq=False, repr=False)
class Estimator(BaseEstimator):
    """Base class of the estimators.

    Parameters
    ----------
    random_state : int, RandomState or None
        An int is the seed of the run: ``simulate`` with this seed gives the same model.
        None: each party draws random numbers from its operating system.

    Attributes
    ----------
    result_, ledger_ : ProtocolResult, Ledger
        Result of the last run, and its round trips, messages and bytes.
    """

    random_state: Any = None

    _strategy: ClassVar[type[ProtocolStrategy]]
    _names: ClassVar[list[str]]
    _fixed: ClassVar[dict[str, Any]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Make ``fit`` and ``forget`` leave the estimator unchanged if they fail."""
        super().__init_subclass__(**kwargs)
        for name in {"fit", "forget"} & vars(cls).keys():
            setattr(cls, name, whole_or_not(vars(cls)[name]))

    def _made(self, **settings: Any) -> ProtocolStrategy:
        """Return the strategy; `settings` are the settings that ``fit`` sets."""
        chosen = {name: getattr(self, name) for name in self._names}
        return self._strategy(**chosen | self._fixed | settings)

    def _run(
        self, strategy: ProtocolStrategy, parties: Sequence[Party]
    ) -> ProtocolResult:
        """Run a strategy on parties, and store the result and its ledger."""
        seed, random = self.random_state, check_random_state(self.random_state)
        if seed is not None and not isinstance(seed, Integral):
            seed = random.randint(2**31)
        try:
            self.result_ = simulate(strategy, parties, seed)
        except FederationError as error:  # the data do not fit the settings
            raise ValueError(str(error)) from error
        self.ledger_ = self.result_.ledger
        return self.result_

    @property
    def _model(self) -> Any:
        """The model of the last run."""
        check_is_fitted(self)
        return self.result_.model


@dataclass(kw_only=True, eq=False, repr=False)
class SplitColumns(Estimator):
    """Base class of estimators whose parties hold columns of the same rows.

    Parameters
    ----------
    columns_per_party : int, list, partitioner of Flower Datasets or None
        The columns of X that each party holds: an int (the number of parties, which get
        consecutive columns), a list of counts of consecutive columns, a list of lists
        of column numbers or names, or a vertical partitioner. None: two parties, or one
        party for each block if X is a list of blocks.
    random_state
        As in :class:`Estimator`.

    Attributes
    ----------
    columns_per_party_ : list of Array of int
        Column numbers of each party.
    result_, ledger_
        As in :class:`Estimator`.
    """

    columns_per_party: Any = None

    def predict(self, X: Any) -> Array:
        """Return the predictions for rows, in an array of shape (n,).

        The predictions are values in the unit of y, or cluster numbers.
        """
        return np.asarray(self._model.predict(self._blocks(X)))

    def _split(self, X: Any, y: Any = "no_validation", **how: Any) -> Any:
        """Check the arguments of ``fit``; return each party's block, and y.

        `how` holds arguments for scikit-learn's ``validate_data``.
        """
        check_labels(X, y, numbers=how.get("y_numeric", False))
        X, given = whole(X, "columns_per_party", self.columns_per_party, axis=1)
        checked = validate_data(self, X, y, dtype=np.float64, **how)
        X, y = (checked, None) if isinstance(y, str) else checked
        n_columns = X.shape[1]
        names = getattr(self, "feature_names_in_", [f"x{j}" for j in range(n_columns)])
        if hasattr(given, "load_partition"):
            given = columns_of(given, names)
        given = 2 if given is None else given
        self.columns_per_party_ = split(
            given, n_columns, "columns_per_party", "n_features", names
        )
        return [X[:, columns] for columns in self.columns_per_party_], y

    def _blocks(self, X: Any) -> list[Array]:
        """Return each party's block of the rows passed to ``predict``."""
        check_is_fitted(self)
        if blocks := as_blocks(X):
            self._check_names(blocks)
            return check_blocks(blocks, list(map(len, self.columns_per_party_)))
        number_array(X, "X")
        X = validate_data(self, X, reset=False, dtype=np.float64)
        return [X[:, columns] for columns in self.columns_per_party_]

    def _check_names(self, blocks: Sequence[Any]) -> None:
        """Refuse blocks whose column names differ from the names in training."""
        if (names := getattr(self, "feature_names_in_", None)) is None:
            return
        for block, columns in zip(blocks, self.columns_per_party_, strict=False):
            wanted = names[columns].tolist()
            if hasattr(block, "columns") and list(block.columns) != wanted:
                raise ValueError(
                    f"the columns of a block must be {wanted}, in this order, got "
                    f"{list(block.columns)}"
                )

    def _joined(self, blocks: Sequence[Array]) -> Array:
        """Join the parties' arrays along the columns, in the column order of X."""
        order = np.argsort(np.concatenate(self.columns_per_party_))
        return np.concatenate(blocks, axis=-1)[..., order]


@dataclass(kw_only=True, eq=False, repr=False)
class Labelled(SplitColumns):
    """Base class of the estimators for which one party holds labels.

    Parameters
    ----------
    columns_per_party, random_state
        As in :class:`SplitColumns`.
    label_party : int
        Index of the party that holds y, from 0; -1 is the last party.
    """

    label_party: int = -1

    def _parties(self, blocks: Sequence[Array], y: Array) -> list[Party]:
        """Return the parties, one of them with the labels y."""
        T = len(blocks)
        if not is_whole(self.label_party) or not -T <= self.label_party < T:
            raise ValueError(
                f"label_party must be the index of one of {T} parties, from {-T} to "
                f"{T - 1}, got {self.label_party!r}"
            )
        holder = self.label_party % T
        return [Party(X, y=y if j == holder else None) for j, X in enumerate(blocks)]


@dataclass(kw_only=True, eq=False, repr=False)
class SplitRows(Estimator):
    """Base class of estimators whose parties hold rows of the same columns.

    Parameters
    ----------
    rows_per_party : int, list or None
        The rows of X that each party holds: an int (the number of parties, which get
        consecutive rows), a list of counts of consecutive rows, or a list of lists of
        row numbers. None: three parties, or one party for each block if X is a list of
        blocks.
    random_state
        As in :class:`Estimator`.

    Attributes
    ----------
    rows_per_party_ : list of Array of int
        Row numbers of each party.
    result_, ledger_
        As in :class:`Estimator`.
    """

    rows_per_party: Any = None

    def predict(self, X: Any) -> Array:
        """Return the index of each row's nearest centre, in an array of shape (n,)."""
        return np.asarray(self._model.predict(self._rows(X)))

    def _split(self, X: Any) -> Array:
        """Check the rows passed to ``fit``, and return them."""
        X, given = whole(X, "rows_per_party", self.rows_per_party, axis=0)
        X = validate_data(self, X, dtype=np.float64)
        given = 3 if given is None else given
        self.rows_per_party_ = split(given, len(X), "rows_per_party", "n_samples")
        return np.asarray(X)

    def _rows(self, X: Any) -> Array:
        """Return the rows passed to ``predict``."""
        check_is_fitted(self)
        X, _ = whole(X, "rows", None, axis=0)
        return np.asarray(validate_data(self, X, reset=False, dtype=np.float64))


class Scored:
    """Checks labels in ``score`` as in ``fit``."""

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the R^2 of the predictions for rows, or their accuracy for classes."""
        check_labels(X, y, numbers=is_regressor(self))
        check_labels(X, sample_weight, "sample_weight")
        return float(super().score(X, y, sample_weight))  # type: ignore[misc]


def check_labels(X: Any, y: Any, what: str = "y", numbers: bool = True) -> None:
    """Refuse masked labels, unclear classes, and labels that do not match X's rows."""
    check_index(indexed(as_blocks(X) or [X]), y, what)
    if np.ma.is_masked(y):
        raise ValueError(f"{what} must have no masked value")
    if y is None or isinstance(y, str):
        return
    if numbers:
        number_array(y, what)
        return
    classes = set(np.ravel(np.asarray(y, dtype=object)).tolist())
    texts = [label for label in classes if isinstance(label, str)]
    plain = {normal_text(text).casefold() for text in texts}
    kinds = {type(label).__name__ for label in classes}
    if kinds & {"NoneType", "NAType", "NaTType"} or plain & {"", "nan"}:
        raise ValueError(f"{what} must have no missing label")
    if texts and kinds - {"float"} - {type(text).__name__ for text in texts}:
        raise ValueError(f"{what} must have classes that are all text or all numbers")
    if len(plain) < len(texts):
        raise ValueError(
            f"{what} must have classes that differ in more than blanks, case or "
            "Unicode form: write each class consistently"
        )


def whole_or_not(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that, if it raises, leaves its object unchanged."""

    @functools.wraps(method)
    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = dict(vars(self))
        try:
            return method(self, *args, **kwargs)
        except BaseException:
            vars(self).clear()
            vars(self).update(before)
            raise

    return guarded


def as_blocks(X: Any) -> list[Any]:
    """Return the matrices if X is a list of matrices, and [] otherwise.

    A matrix may be an array, a DataFrame, or a data set of Hugging Face's Datasets,
    which Flower Datasets returns.
    """
    if not isinstance(X, list | tuple):
        return []
    if not all(len(getattr(block, "shape", ())) == 2 for block in X):
        return []
    return [block.to_pandas() if hasattr(block, "to_pandas") else block for block in X]


def whole(X: Any, argument: str, given: Any, axis: int) -> tuple[Any, Any]:
    """Return X as one matrix, and its split: `given`, or the split into its blocks.

    Raises ValueError if X is a list of blocks and `argument` is not None, or if the
    blocks are tables whose rows, or whose columns, are not in the same order.
    """
    if not (blocks := as_blocks(X)):
        number_array(X, "X")
        return X, given
    if given is not None:
        raise ValueError(
            f"{argument} must be None if X is a list of blocks, got {given!r}"
        )
    sizes = [block.shape[axis] for block in blocks]
    arrays = [number_array(block, "a block of X") for block in blocks]
    if axis == 1:
        for block in blocks:
            check_index(indexed(blocks), block, "each block")
    if not all(hasattr(block, "columns") for block in blocks):
        return np.concatenate(arrays, axis), sizes
    names = [list(block.columns) for block in blocks]
    if axis == 0 and any(other != names[0] for other in names):
        raise ValueError("the blocks of X must have the same columns in the same order")
    index = None
    if axis == 1:
        index, names[0] = blocks[0].index, [*chain(*names)]
    import pandas as pd

    return pd.DataFrame(np.concatenate(arrays, axis), index, names[0]), sizes


def columns_of(partitioner: Any, names: Sequence[str]) -> list[list[str]]:
    """Return the names of each party's columns, as assigned by a vertical partitioner.

    The partitioner is copied first, because a partitioner accepts only one data set and
    draws random numbers.
    """
    fresh = deepcopy(partitioner)
    if not fresh.is_dataset_assigned():
        from datasets import Dataset

        fresh.dataset = Dataset.from_dict({name: [] for name in names})
    parts = range(fresh.num_partitions)
    return [fresh.load_partition(part).column_names for part in parts]


def split(
    given: Any, n: int, argument: str, what: str, names: Sequence[str] = ()
) -> list[Array]:
    """Return the column numbers, or row numbers, of each party, of shape (d_j,).

    X has n columns, or rows. `given` is the value of `argument` (see
    :class:`SplitColumns`), and `what` is scikit-learn's name for n. Raises ValueError
    unless each column or row belongs to exactly one party and each party has at least
    one.

    >>> [own.tolist() for own in split([1, 2], 3, "columns_per_party", "n_features")]
    [[0], [1, 2]]
    """
    if is_whole(given):
        parties = int(given)
        if not 1 <= parties <= n:
            raise ValueError(
                f"{argument} must be a number of parties from 1 to {what}, got "
                f"{parties} with {what} = {n}"
            )
        return np.array_split(np.arange(n), parties)
    if not is_list(given):
        raise ValueError(
            f"{argument} must be a number of parties or a list with an item for each "
            f"party, got {given!r}"
        )
    items: list[Any] = list(given)
    if all(map(is_whole, items)):
        if min(items, default=0) < 1 or sum(items) != n:
            raise ValueError(
                f"{argument} must be counts of at least 1 that add up to {what} = {n}, "
                f"got {items}"
            )
        return np.split(np.arange(n), np.cumsum(items)[:-1])
    if not all(map(is_list, items)):
        raise ValueError(f"{argument} must list either counts or lists, got {given!r}")
    places = {name: place for place, name in enumerate(names)}
    held = [[places.get(name, name) for name in item] for item in items]
    for i in chain(*held):
        if not is_whole(i) or i not in range(n):
            raise ValueError(f"{argument} contains {i!r}, but X has {what} = {n}")
    if not all(held) or sorted(chain(*held)) != list(range(n)):
        raise ValueError(
            f"{argument} must contain each of the {what} = {n} items exactly once, and "
            "at least one item for each party"
        )
    return [np.array(item, dtype=np.int64) for item in held]


def is_list(value: Any) -> bool:
    """Return whether a value is a list or another iterable, but not a string."""
    return isinstance(value, Iterable) and not isinstance(value, str)


@dataclass(kw_only=True, eq=False, repr=False)
class Classifier(Scored, ClassifierMixin, Labelled):
    """Base class of classifiers for columns that are split over parties.

    Attributes
    ----------
    classes_ : Array, shape (K,)
        The labels of the classes.
    columns_per_party_, result_, ledger_
        As in :class:`SplitColumns`.
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Fit the model to X and y.

        X is an array of shape (n, d) or a list with one block per party; y is an array
        of shape (n,).
        """
        blocks, y = self._split(X, y, ensure_min_samples=2)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError("y must have at least two classes, got one class")
        target = "binary" if len(self.classes_) == 2 else "multiclass"
        self._run(self._made(target=target), self._parties(blocks, codes))
        return self

    def decision_function(self, X: Any) -> Array:
        """Return scores f(x), of shape (n,) for two classes and (n, K) for more."""
        scores = np.asarray(self._model.decision_function(self._blocks(X)))
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X: Any) -> Array:
        """Return the labels of rows, in an array of shape (n,)."""
        codes = super().predict(X)
        return np.asarray(self.classes_[codes.astype(np.int64)])

    def predict_proba(self, X: Any) -> Array:
        """Return the class probabilities of rows, in an array of shape (n, K)."""
        return np.asarray(self._model.predict_proba(self._blocks(X)))


@dataclass(kw_only=True, eq=False, repr=False)
class Regressor(Scored, RegressorMixin, Labelled):
    """Base class of regressors for columns that are split over parties."""

    def fit(self, X: Any, y: Any) -> Self:
        """Fit the model to X and y.

        X is an array of shape (n, d) or a list with one block per party; y is an array
        of shape (n,).
        """
        blocks, y = self._split(X, y, y_numeric=True, ensure_min_samples=2)
        self._run(self._made(), self._parties(blocks, y))
        return self
