"""``SecureRidge`` beside boosted trees, and its costs, as one page.

The command measures cell by cell and writes the page after each cell. If it was
interrupted, it continues with the missing cells::

    python -m simulations.ridge --output-dir docs/papers

==========  ========================================================================
errors      test errors of SecureRidge, linear, kernel and boosted models
parties     the protocol with 2, 3 and 5 parties beside its model from pooled columns
gram        Gram matrices under shares beside Gram matrices in NumPy
roles       seconds, memory and bytes of each role
coresets    ``CoresetVRLR(solver="gram")`` beside least squares on all rows
==========  ========================================================================

``--quick`` takes a minute, on generated rows only, and always starts from the
beginning. ``--check`` writes nothing: it fails unless the page agrees with the figures
beside it and some cheap cells give the same figures again. The data are npz files with
X and y in ``--data-dir`` or the folder ``VFL_FLOWER_DATA``.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import fill
from typing import Annotated, Any

import click
import numpy as np
import typer

from simulations import coresets
from simulations.baselines import (
    KERNEL_ROWS,
    TUNED_ON,
    is_binary,
    test_error,
    tuned_alike,
)
from simulations.experiments import (
    OUTPUT,
    DataDir,
    OutputDir,
    Results,
    load_npz,
    new_app,
    some_of,
    table,
    tables_of,
    tell,
)
from simulations.ridge_costs import COLUMNS, ROLES, gram_errors, roles
from simulations.ridge_pooled import secure_ridge
from vfl_flower import CoresetVRLR, Party, RidgePrediction, SecureRidge, simulate
from vfl_flower.models.coresets import LinearModel
from vfl_flower.models.ridge import RidgeModel
from vfl_flower.secure_aggregation.products.roles import MOST_NUMBERS
from vfl_flower.strategies.ridge.training import COLUMNS as MOST_COLUMNS
from vfl_flower.typing import Array

Figures = dict[str, Any]
Cells = Mapping[str, Figures]
"""Figures by the names of cells, such as "errors kc_house 20 boosting"."""

STEM = "ridge-results"
TABLES = ("errors", "parties", "gram", "roles", "coresets")


@dataclass(frozen=True)
class Size:
    """The scope of a measurement."""

    sets: tuple[str, ...]  # data sets of the table of errors
    seeds: tuple[int, ...]  # of splits and models
    one: str  # the data set of the tables of parties and of coresets
    parties: tuple[int, ...]  # their numbers of parties
    grams: tuple[tuple[int, int, int], ...]  # rows, features, parties
    runs: tuple[tuple[int, int, int, bool], ...]  # rows, joint, parties, two turns?
    features: int = 0  # joint ones; 0: as many as the rows allow
    repeats: int = 20  # coresets of as many seeds


RIDGE, ONE_TURN = "SecureRidge", "SecureRidge, one turn"
EQUAL = "boosting, equal rows"
MODELS = (RIDGE, "boosting", EQUAL, "linear", "kernel", ONE_TURN)
"""The models in the table of errors, in order of measurement."""

FULL = Size(
    sets=("kc_house", "a9a", "ijcnn1", "cod_rna", "covtype"),
    seeds=(20, 21, 22),
    one="kc_house",
    parties=(2, 3, 5),
    grams=(
        *((4096, 512, count) for count in (2, 3, 4, 5, 6)),
        *((1024, 512, 3), (16_384, 512, 3), (4096, 64, 3), (16_384, 2048, 3)),
    ),
    runs=(
        *((4096, 256, count, False) for count in (2, 3, 5)),
        *((8192, 256, 3, False), (16_384, 256, 3, False)),
        *((16_384, 768, 3, False), (16_384, 1648, 3, False), (16_384, 1648, 3, True)),
    ),
)
QUICK = Size(
    sets=("generated", "classes"),
    seeds=(20,),
    one="generated",
    parties=(2, 3),
    grams=((256, 32, 2), (256, 32, 3)),
    runs=((512, 32, 3, True), (1024, 32, 3, True)),
    features=64,
    repeats=2,
)
NUMBERS = ("kc_house", "generated")
"""Sets whose labels are numbers."""

TRAIN, COVTYPE_ROWS, QUICK_ROWS, CORESET = 0.8, 75_000, 1500, 600
EQUAL_ROWS = MOST_NUMBERS // MOST_COLUMNS
"""Maximum training rows of `SecureRidge` with all its features."""


def load(
    name: str, folder: Path | None, seed: int
) -> tuple[Array, Array, Array, Array]:
    """Return training rows and labels (four in five), and test rows and labels.

    covtype has 75,000 rows, with class 2 against the rest. Classes are -1 and +1.
    """
    rng = np.random.default_rng(100 + seed)
    if name in QUICK.sets:
        X = rng.standard_t(5, (QUICK_ROWS, 8))
        y = np.sin(X[:, 0] + X[:, 1]) + X[:, 2] * (X[:, 3] > 0)
    else:
        X, y = load_npz(folder, name)
    if name == "covtype":
        rows = rng.permutation(len(y))[:COVTYPE_ROWS]
        X, y = X[rows], y[rows] == 2
    if name not in NUMBERS:
        y = np.where(y > 0, 1.0, -1.0)
    train, test = np.split(rng.permutation(len(y)), [int(TRAIN * len(y))])
    return X[train], y[train], X[test], y[test]


def error(
    name: str, folder: Path | None, seed: int, model: str, *, features: int = 0
) -> Figures:
    """Fit a model and return its errors on the test rows."""
    X, y, X_test, y_test = load(name, folder, seed)
    start = time.perf_counter()
    if model in (RIDGE, ONE_TURN):
        score, about = secure_ridge(
            *(X, y, 3, seed), features=features, relevance=model != ONE_TURN
        )
    else:
        few = slice(EQUAL_ROWS if model == EQUAL else len(y))
        score, about = tuned_alike(model.partition(",")[0], X[few], y[few], seed)
    figures = {"train": len(y), **about, "seconds": time.perf_counter() - start}
    f, p = score(X_test)
    if not is_binary(y):
        return {"error": test_error(f, y_test) / float(y_test.var()), **figures}
    from sklearn.metrics import log_loss, roc_auc_score

    figures["auc"] = float(roc_auc_score(y_test, f))
    if p is not None:
        figures["log_loss"] = float(log_loss(y_test, p))
    return {"error": test_error(f, y_test), **figures}


def protocol(
    name: str, folder: Path | None, seed: int, count: int, features: int
) -> Figures:
    """Train and predict under shares, beside the model from pooled columns."""
    X, y, X_test, y_test = load(name, folder, seed)
    blocks, new = (np.array_split(rows, count, axis=1) for rows in (X, X_test))
    with TemporaryDirectory() as state:
        folders = [Path(state, f"p{j}") for j in range(count)]
        parties = [
            Party(b, y if j == count - 1 else None, name=f"p{j}", state_dir=folders[j])
            for j, b in enumerate(blocks)
        ]
        training = SecureRidge(target="continuous", joint_features=features)
        result = simulate(training, parties, seed=seed)
        assert isinstance(result.model, RidgeModel)
        asked = [
            Party(b, name=f"p{j}", state_dir=folders[j]) for j, b in enumerate(new)
        ]
        predicted = simulate(RidgePrediction(result.model.id), asked).ledger
    f = result.model.predict(new)
    score, _ = secure_ridge(X, y, count, seed, features=features)
    pooled, _ = score(X_test)
    ledger, variance = result.ledger, float(y_test.var())
    sent = [
        sum(e.bytes_up for e in ledger.entries.values() if e.party == f"p{j}")
        for j in range(count)
    ]
    thousands = len(y_test) / 1000
    return {
        "error": test_error(f, y_test) / variance,
        "pooled_error": test_error(pooled, y_test) / variance,
        "off": float(np.sqrt(np.mean((f - pooled) ** 2)) / pooled.std()),
        "train_trips": ledger.round_trips,
        "predict_trips": predicted.round_trips,
        "megabytes": (ledger.bytes_up + ledger.bytes_down) / 1e6,
        "largest": max(sent) / 1e6,
        "predict": (predicted.bytes_up + predicted.bytes_down) / 1e6 / thousands,
    }


def least_squares(X: Array, y: Array) -> tuple[Array, float]:
    """Return coefficients for standardised columns, and the mean loss."""
    Z = np.column_stack([(X - X.mean(axis=0)) / X.std(axis=0), np.ones(len(X))])
    theta = np.linalg.lstsq(Z, y, rcond=None)[0]
    return theta[:-1], float(np.mean((Z @ theta - y) ** 2))


def coreset(name: str, folder: Path | None, count: int, repeats: int) -> Figures:
    """Fit coresets of all rows; return the loss on all rows over the smallest loss."""
    X, y, X_test, y_test = load(name, folder, 0)
    X, y = np.vstack([X, X_test]), np.append(y, y_test)
    _, least = least_squares(X, y)
    blocks = np.array_split(X, count, axis=1)
    ratios, trips, left = [], 0, 0
    for seed in range(repeats):
        parties = [
            Party(block, y if j == count - 1 else None)
            for j, block in enumerate(blocks)
        ]
        result = simulate(CoresetVRLR(CORESET, solver="gram"), parties, seed=seed)
        assert isinstance(result.model, LinearModel)
        ratios.append(np.mean((result.model.predict(blocks) - y) ** 2) / least)
        trips = max(trips, result.ledger.round_trips)
        left += result.metrics["left_out"]
    return {
        "ratio": float(np.mean(ratios)),
        "worst": float(max(ratios)),
        "round_trips": trips,
        "left_out": left,
        "repeats": repeats,
    }


def all_rows(quick: bool) -> Figures:
    """Fit all flights; return the distance of the model from pooled least squares."""
    data = next(coresets.LOADERS["flights"](None, quick)).data
    assert data.y is not None
    theta, least = least_squares(data.X, data.y)
    strategy = CoresetVRLR(CORESET, solver="gram", sampling="full")
    result = simulate(strategy, data.parties(), seed=0)
    assert isinstance(result.model, LinearModel)
    coef = np.concatenate(result.model.coef_) * data.X.std(axis=0)
    loss = np.mean((result.model.predict(data.split(data.X)) - data.y) ** 2)
    ledger = result.ledger
    return {
        "rows": len(data.y),
        "columns": data.X.shape[1],
        "coefficients": float(np.linalg.norm(coef - theta) / np.linalg.norm(theta)),
        "loss": float(loss / least - 1),
        "round_trips": ledger.round_trips,
        "megabytes": (ledger.bytes_up + ledger.bytes_down) / 1e6,
    }


def alone(function: Callable[..., Figures], *arguments: Any) -> Figures:
    """Call a function in a separate process, to measure only its own memory."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        return pool.submit(function, *arguments).result()


@dataclass(frozen=True)
class Cell:
    """Figures that are measured together."""

    name: str  # table and place in it; the second word is the data set, if any
    measure: Callable[[], Figures]
    cheap: bool = False  # takes seconds: ``--check`` measures it again

    @property
    def dataset(self) -> str:
        """The data set, or another word."""
        return self.name.split()[1]


def role_cell(rows: int, joint: int, count: int, two: bool) -> str:
    """Return the name of a cell of the table of roles."""
    return f"roles {rows} {joint} {count} {'two turns' if two else 'one turn'}"


def plan(size: Size, folder: Path | None) -> Iterator[Cell]:
    """Yield all cells, in order of measurement."""
    few = size.features
    for counts in size.grams:
        words = " ".join(map(str, counts))
        cheap = counts[0] * counts[1] <= 2**19
        yield Cell(f"gram {words}", partial(gram_errors, *counts), cheap)
    for rows, joint, count, two in size.runs:
        measure = partial(alone, roles, rows, joint, count, two)
        name = role_cell(rows, joint, count, two)
        yield Cell(name, measure, cheap=rows * joint * count <= 2**21)
    for count in size.parties:
        name = f"coresets {size.one} {count}"
        yield Cell(name, partial(coreset, size.one, folder, count, size.repeats), True)
    yield Cell("coresets flights", partial(all_rows, size is QUICK))

    def errors(*models: str) -> Iterator[Cell]:
        for model in models:
            sets = [name for name in size.sets if model != EQUAL or name == "covtype"]
            for name, seed in product(sets, size.seeds):
                measure = partial(error, name, folder, seed, model, features=few)
                cheap = model == "linear" and name in NUMBERS
                yield Cell(f"errors {name} {seed} {model}", measure, cheap)

    yield from errors(*MODELS[:-1])
    for count in size.parties:
        measure = partial(protocol, size.one, folder, size.seeds[0], count, few)
        yield Cell(f"parties {size.one} {count}", measure)
    yield from errors(*MODELS[-1:])


# --- The page -----------------------------------------------------------------------


def seeds_of(cells: Cells, size: Size, name: str, figure: str = "error") -> list[float]:
    """Return a figure for each measured seed; `name` has {} for the seed."""
    found = [cells.get(name.format(seed), {}).get(figure) for seed in size.seeds]
    return [value for value in found if value is not None]


def mean_of(values: Sequence[float], digits: int) -> str:
    """Return the mean, with several values in brackets; "" without values."""
    if not values:
        return ""
    mean = f"{np.mean(values):.{digits}f}"
    each = ", ".join(f"{value:.{digits}f}" for value in values)
    return f"{mean} ({each})" if len(values) > 1 else mean


def mean_errors(cells: Cells, size: Size, name: str) -> dict[str, float]:
    """Return the mean error on one set of each model that has all seeds."""
    found = {
        model: seeds_of(cells, size, f"errors {name} {{}} {model}") for model in MODELS
    }
    return {
        model: float(np.mean(values))
        for model, values in found.items()
        if len(values) == len(size.seeds)
    }


DETAILS = {"AUC": ("auc", 3), "log loss": ("log_loss", 3), "seconds": ("seconds", 0)}
"""Further columns: figure and number of digits."""


def details(cells: Cells, size: Size, name: str) -> Iterator[dict[str, str]]:
    """Yield a row for each model of one set: rows, other errors, chosen settings."""
    for model in MODELS:
        place = f"errors {name} {{}} {model}"
        found = [cells[k] for s in size.seeds if (k := place.format(s)) in cells]
        if not found:
            continue
        row = {
            "set": name,
            "model": model,
            "rows": f"{found[0]['rows']:,} of {found[0]['train']:,}",
        }
        for title, (figure, digits) in DETAILS.items():
            values = seeds_of(cells, size, place, figure)
            row[title] = mean_of(values, digits) if values else ""
        row["chosen, first seed"] = ", ".join(
            f"{key} {value:.3g}" for key, value in found[0].get("chosen", {}).items()
        )
        yield row


def shown(rows: Iterable[Mapping[str, str]]) -> str:
    """Return a table, or a sentence if there are no rows."""
    return table(rows) or "Not measured yet."


def errors_page(cells: Cells, size: Size) -> Iterator[str]:
    """Yield the table of errors, and the sets on which boosted trees win."""
    yield "## Test errors, and where boosted trees still win"
    rows, wins = [], dict[str, str]()
    for name in size.sets:
        row = {"set": name + ", %" * (name not in NUMBERS)}
        for model in MODELS:
            values = seeds_of(cells, size, f"errors {name} {{}} {model}")
            row[model] = mean_of(values, 3 if name in NUMBERS else 2)
        if means := mean_errors(cells, size, name):
            wins[name] = row["wins"] = min(means, key=lambda model: means[model])
        rows.append(row)
    trees = [name for name, model in wins.items() if model.startswith("boosting")]
    others = [f"{name} ({wins[name]})" for name in wins if name not in trees]
    yield f"""
        Boosted trees have the lowest mean error on {_listed(trees)}; another model has
        it on {_listed(others)}.
    """
    yield shown(rows)
    yield f"""
        Mean over the seeds, and each seed in brackets: of numbers (kc_house) the
        mean squared error over the variance of the test labels, of classes the
        wrong ones in %. A fifth of the rows is for tests, on which no choice was
        made; covtype has {COVTYPE_ROWS:,} random rows, class 2 against the rest.
        Each model is tuned on two halves of the training rows. *SecureRidge* has its
        defaults and three parties; its columns are pooled here, which gives the
        model of a run ([below](#two-three-and-five-parties)); *one turn* is
        `relevance=false`. *linear* is ridge or logistic regression. *kernel* is
        kernel ridge regression or a support vector machine (SVC), tuned on
        {TUNED_ON:,} rows and fitted on at most {KERNEL_ROWS:,}. *boosting* is
        scikit-learn's histogram gradient boosting; *equal rows*: on {EQUAL_ROWS:,}
        rows, the most that SecureRidge takes with all its features. Seconds are those
        of tuning and fitting, by the clock of a machine that other work kept busy.
    """
    yield shown(row for name in size.sets for row in details(cells, size, name))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def gram_page(cells: Cells, size: Size) -> Iterator[str]:
    """Yield the errors of Gram matrices."""
    yield "## The Gram matrix under shares beside NumPy's"
    yield """
        Joint features alone, from random angles: NumPy takes the cosines of the
        exact sums of the angles, in float64. The bound is that of `gram_error`, for
        errors that all point one way; the largest entries are about half the rows.
    """
    rows = []
    for counts in size.grams:
        if cell := cells.get("gram " + " ".join(map(str, counts))):
            names = ("rows", "features", "parties")
            rows.append(
                {k: f"{n:,}" for k, n in zip(names, counts, strict=True)}
                | {
                    "ring": f"{cell['bits']} bits",
                    "largest error": f"{cell['largest']:.3f}",
                    "bound": f"{cell['bound']:.1f}",
                    "root mean square": f"{cell['rms']:.4f}",
                    "mean of the diagonal": f"{cell['diagonal']:.1f}",
                }
            )
    yield shown(rows)


def roles_page(cells: Cells, size: Size) -> Iterator[str]:
    """Yield the costs of each role, and their growth."""
    yield "## Seconds, memory and bytes of each role"
    yield f"""
        Training on generated rows of {COLUMNS} columns, each party in a process of
        its own. NumPy: the Gram matrix and the fit, of pooled
        features, in each turn. A role: seconds of processor, how many times NumPy's
        that is, and the largest memory above that at the start of the run. The
        server deals, and has the messages of all.
    """
    roles, costs, sent = (*ROLES, "dealing server"), [], []
    found = [cells.get(role_cell(*run)) for run in size.runs]
    for (rows, joint, count, two), cell in zip(size.runs, found, strict=True):
        if cell is None:
            continue
        run = {
            "rows": f"{rows:,}",
            "joint + local": f"{joint:,} + {cell['local']}",
            "parties": str(count),
            "turns": "2" if two else "1",
        }
        used = {role: cell[role] for role in roles if role in cell}
        costs.append(
            run
            | {"NumPy": f"{cell['numpy']:.1f} s"}
            | {
                role: f"{of['seconds']:.1f} s, {of['seconds'] / cell['numpy']:.1f} x, "
                f"{of['megabytes'] / 1000:.2f} GB"
                for role, of in used.items()
            }
        )
        sent.append(
            run
            | {"round trips": str(cell["round_trips"])}
            | {
                f"{role}: {way}": f"{of[way]:.1f}"
                for role, of in used.items()
                for way in ("sent", "received")
                if way in of
            }
        )
    yield shown(costs)
    yield "Bytes of messages for each row and each feature of the model, of both turns:"
    yield shown(sent)


def parties_page(cells: Cells, size: Size) -> Iterator[str]:
    """Yield the protocol beside the model from pooled columns."""
    yield "## Two, three and five parties"
    yield f"""
        {size.one}, seed {size.seeds[0]}, in one process with the defaults:
        the run under shares beside the same model from pooled columns. Off: the
        root mean square of the difference of their predictions of the test rows,
        over the standard deviation of these. Two runs under shares differ as well,
        by the rounding of joint features and by penalties that do equally well
        ([precision](ridge.md#precision)).
    """
    rows = []
    for count in size.parties:
        if cell := cells.get(f"parties {size.one} {count}"):
            rows.append(
                {
                    "parties": str(count),
                    "test error": f"{cell['error']:.4f}",
                    "of pooled columns": f"{cell['pooled_error']:.4f}",
                    "off": f"{cell['off']:.4f}",
                    "round trips to train": str(cell["train_trips"]),
                    "to predict": str(cell["predict_trips"]),
                    "MB to train, all": f"{cell['megabytes']:,.0f}",
                    "largest sender": f"{cell['largest']:,.0f}",
                    "MB to predict 1,000 rows": f"{cell['predict']:,.1f}",
                }
            )
    yield shown(rows)


def coresets_page(cells: Cells, size: Size) -> Iterator[str]:
    """Yield the results of linear regression from sums of products."""
    yield '## `CoresetVRLR(solver="gram")`'
    yield (
        f"{size.one}, coresets of {CORESET} rows: the mean squared error on all rows "
        "over that of least squares on all rows, pooled."
    )
    rows = []
    for count in size.parties:
        if cell := cells.get(f"coresets {size.one} {count}"):
            rows.append(
                {
                    "parties": str(count),
                    "loss ratio": f"{cell['ratio']:.4f}",
                    "largest": f"{cell['worst']:.4f}",
                    "repeats": str(cell["repeats"]),
                    "round trips": str(cell["round_trips"]),
                    "columns left out, all repeats": str(cell["left_out"]),
                }
            )
    yield shown(rows)
    if cell := cells.get("coresets flights"):
        yield (
            f"{cell['rows']:,} rows of flights, {cell['columns']} columns, three "
            "parties: the coefficients (of columns in standard deviations) are off "
            f"pooled least squares by {cell['coefficients']:.1e} of their length, and "
            f"the loss is larger by {cell['loss']:.1e} of itself; "
            f"{cell['round_trips']} round trips, {cell['megabytes']:,.0f} MB."
        )


def in_short(cells: Cells, size: Size) -> Iterator[str]:
    """Yield the summary of the measured cells, as a list."""
    points = [*_errors_in_short(cells, size), *_costs_in_short(cells, size)]
    if points:
        yield "## In short"
        yield "\n".join(f"- {' '.join(point.split())}" for point in points)


def _errors_in_short(cells: Cells, size: Size) -> Iterator[str]:
    errors = {name: mean_errors(cells, size, name) for name in size.sets}
    called = {
        "linear": "the linear model",
        "kernel": "the kernel model of pooled columns",
        "boosting": "boosted trees",
    }
    sentences = []
    for model, what in called.items():
        known = {k: of for k, of in errors.items() if {RIDGE, model} <= of.keys()}
        lower = [k for k, of in known.items() if of[RIDGE] < of[model]]
        other = _listed([k for k in known if k not in lower])
        where = f"on {len(lower)} of {len(known)} sets"
        if lower and len(lower) < len(known):
            where += f" (not on {other})"
        sentences += [f"that of {what} {where}"] if known else []
    if sentences:
        yield f"""**Test errors.** The mean test error of SecureRidge is below
            {", and below ".join(sentences)}."""


def _costs_in_short(cells: Cells, size: Size) -> Iterator[str]:
    found = [cells.get(f"parties {size.one} {count}") for count in size.parties]
    if runs := [cell for cell in found if cell]:
        off = max(abs(cell["error"] - cell["pooled_error"]) for cell in runs)
        yield f"""**Runs of {size.one}.** The test error of a run under shares differs
            by at most {off:.4f} from that of the same model of pooled columns; training
            takes {_range(runs, "train_trips", "d")} round trips and
            {_range(runs, "megabytes", ",.0f")} MB of all parties, and predicting
            {_range(runs, "predict_trips", "d")} round trips."""
    found = [cells.get(role_cell(*run)) for run in size.runs]
    if costs := [cell | cell[ROLES[0]] for cell in found if cell]:
        for cell in costs:
            cell["times"] = cell["seconds"] / cell["numpy"]
        most = max(cell["megabytes"] for cell in costs) / 1000
        yield f"""**Work.** The {ROLES[0]} needs {_range(costs, "times", ".1f")} times
            the seconds that NumPy needs for the same matrices and fit of pooled
            columns, and at most {most:.2f} GB."""
    found = [cells.get(f"coresets {size.one} {count}") for count in size.parties]
    if ratios := [cell for cell in found if cell]:
        yield f"""**Linear regression** (`CoresetVRLR`) on coresets of {CORESET} rows
            has {_range(ratios, "ratio", ".3f")} times the loss of least squares on all
            rows, in the mean, and at most
            {max(cell["worst"] for cell in ratios):.3f} times."""


def _range(cells: Sequence[Figures], figure: str, form: str) -> str:
    """Return the smallest and largest value of a figure, or the common value."""
    ends = [f"{end(cell[figure] for cell in cells):{form}}" for end in (min, max)]
    return " to ".join(dict.fromkeys(ends))


PAGES = (errors_page, gram_page, roles_page, parties_page, coresets_page)


def paragraphs(measured: Mapping[str, Any], size: Size) -> Iterator[str]:
    """Yield headings, texts and tables of the page."""
    cells = measured["cells"]
    yield "# SecureRidge: measurements"
    quick = " --quick" if size is QUICK else " --output-dir docs/papers"
    yield f"    python -m simulations.ridge{quick}"
    yield f"""
        This command has written this page and all its figures, which are beside it
        as JSON; it continues where it stopped.
        [ridge.md](ridge.md) explains the method, and
        [experiments.md](experiments.md#data) where the data come from. The seeds
        are {_listed([*map(str, size.seeds)])}, and those of coresets begin at 0.
    """
    numbers = [cell["stamp"] for cell in cells.values()]
    yield shown(
        {
            "cells": str(numbers.count(i)),
            "tables": _listed(
                sorted({k.split()[0] for k, c in cells.items() if c["stamp"] == i})
            ),
            **stamp,
        }
        for i, stamp in enumerate(measured["stamps"])
        if i in numbers
    )
    planned = [cell.name for cell in plan(size, None)]
    tables = dict.fromkeys(name.split()[0] for name in planned)
    missing = []
    for kind in tables:
        of_table = [name for name in planned if name.split()[0] == kind]
        if lacking := sum(name not in cells for name in of_table):
            missing.append(f"{lacking} of {len(of_table)} of {kind}")
    yield f"**Cells that are not measured yet**: {_listed(missing)}."
    yield from in_short(cells, size)
    for part in PAGES:
        yield from part(cells, size)


def page(measured: Mapping[str, Any], size: Size) -> Iterator[str]:
    """Yield the whole page, with wrapped lines; see :func:`paragraphs`."""
    for text in paragraphs(measured, size):
        if text.startswith(("|", "#", "    python")):
            yield text
        elif text.startswith("- "):
            points = text.splitlines()
            yield "\n".join(_wrapped(point, subsequent_indent="  ") for point in points)
        else:
            yield _wrapped(text)


def _wrapped(text: str, **options: Any) -> str:
    return fill(" ".join(text.split()), 100, break_on_hyphens=False, **options)


# --- The command --------------------------------------------------------------------

TOLERANCES = {
    **{"error": 0.02, "largest": 0.1, "rms": 0.1, "ratio": 0.01},
    **{"bits": 0.0, "local": 0.0, "round_trips": 0.0},
}
"""Relative difference allowed when a figure is measured again."""


def check(results: Results, size: Size, folder: Path | None) -> None:
    """Compare the page with its figures, and cheap cells with new measurements."""
    measured = results.earlier()
    if measured is None:
        raise click.ClickException("there are no figures in --output-dir to check")
    text = results.stem.with_suffix(".md").read_text()
    faults = [] if text == results.text(page(measured, size)) else ["the page"]
    for cell in plan(size, folder):
        before = measured["cells"].get(cell.name)
        if before is None or not cell.cheap:
            continue
        if folder is None and cell.dataset in FULL.sets:
            continue
        now = cell.measure()
        for figure in TOLERANCES.keys() & now.keys():
            a, b = before[figure], now[figure]
            tell(f"{cell.name}: {figure} was {a:.6g}, is {b:.6g}")
            if abs(a - b) > TOLERANCES[figure] * abs(a):
                faults.append(f"{figure} of {cell.name}")
    if faults:
        raise click.ClickException(f"not as measured: {', '.join(faults)}")


app = new_app()
NAMES = [*FULL.sets, "flights"]


@app.command()
def main(
    context: typer.Context,
    tables: Annotated[list[str] | None, tables_of(TABLES)] = None,
    datasets: Annotated[
        list[str], some_of(NAMES, "Data sets of the tables that have some.")
    ] = NAMES,
    quick: Annotated[bool, typer.Option(help="A minute, on generated rows.")] = False,
    check_: Annotated[
        bool, typer.Option("--check", help="Compare with the figures there.")
    ] = False,
    data_dir: DataDir = None,
    output_dir: OutputDir = OUTPUT,
) -> None:
    """Measure the missing cells of all or some tables, and write the page."""
    size = QUICK if quick else FULL
    results = Results(context, "ridge", "measured", STEM + "-quick" * quick)
    if check_:
        check(results, size, data_dir)
        return
    earlier = None if quick else results.earlier()
    measured = earlier or {"stamps": [], "cells": {}}
    stamp = results.stamp
    for cell in plan(size, data_dir):
        if cell.name in measured["cells"] or cell.dataset in results.skipped:
            continue
        if tables and cell.name.split()[0] not in tables:
            continue
        if cell.dataset in NAMES and cell.dataset not in datasets:
            continue
        with results.skipping(cell.dataset, datasets):
            figures = cell.measure()
            if stamp not in measured["stamps"]:
                measured["stamps"].append(stamp)
            figures["stamp"] = measured["stamps"].index(stamp)
            measured["cells"][cell.name] = figures
            results.write(measured, page(measured, size))
            tell(f"{cell.name}: {figures}")
    results.write(measured, page(measured, size))
    tell(f"results in {output_dir.absolute()}")


if __name__ == "__main__":
    app(prog_name="python -m simulations.ridge")
