"""The estimators do what scikit-learn expects, and what the strategies do."""

import inspect
import pickle
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import vfl_flower as vf
from vfl_flower import sklearn
from vfl_flower.protocol.settings import settings_of
from vfl_flower.sklearn import (
    CoresetKMeans,
    CoresetRegressor,
    ForgettingKMeans,
    KernelClassifier,
    KernelKMeans,
    KernelRegressor,
    SecureRidgeClassifier,
    SecureRidgeRegressor,
)
from vfl_flower.sklearn.base import OF_A_RUN
from vfl_flower.sklearn.fdskl import ONE_PROCESS

RNG = np.random.default_rng(0)
X = RNG.normal(size=(400, 4))
Y = X @ [1.0, 2.0, 3.0, 4.0] + 5
SPLIT = [[3, 0], [1], [2]]
"""Columns of three parties, in another order than those of X."""

BLOCKS = [X[:, own] for own in SPLIT]

GROUPS = RNG.normal(size=(120, 2)) / 40 + np.repeat([[-0.3], [0.3]], 60, axis=0)
"""Rows of two groups in the box."""

ROWS = [np.arange(m, 120, 3)[::-1] for m in range(3)]
"""Rows of three parties, in another order than those of the groups."""


# -- scikit-learn's own checks ---------------------------------------------------------

CHECKED: dict[BaseEstimator, dict[str, str]] = {
    CoresetRegressor(solver="central", regularizer="ridge", alpha=0.001): {},
    CoresetKMeans(n_clusters=3, n_init=1): {},
    KernelClassifier(features=64): {
        "check_class_weight_classifiers": "a class has no weight of its own: "
        "class_weight is 'none' or 'balanced'"
    },
    KernelRegressor(features=64): {},
    KernelKMeans(
        n_clusters=3, n_components=3, clustering="coreset", n_init=1, iterations=1
    ): {
        "check_methods_sample_order_invariance": "it asks for one component and two "
        "clusters: n_components must be at least n_clusters"
    },
    ForgettingKMeans(n_clusters=3, box="-1000,1000", gamma=1e-5, n_init=1): {},
}
"""Estimators for data of few rows in any box, and which checks they cannot pass."""


@pytest.mark.second
@pytest.mark.parametrize("estimator", CHECKED, ids=lambda e: type(e).__name__)
def test_scikit_learns_checks(estimator):
    """All pass but those that are listed, and these do not."""
    expected = CHECKED[estimator]
    results = check_estimator(
        estimator, on_skip=None, on_fail=None, expected_failed_checks=expected
    )
    assert len(results) > 40
    failed = {r["check_name"]: r["exception"] for r in results if r["exception"]}
    skipped = {r["check_name"] for r in results if r["status"] == "skipped"}
    assert skipped <= {"check_array_api_input"}  # it needs an environment variable
    assert failed.keys() - skipped == expected.keys(), failed


OF_MANY_ROWS = {"SecureRidgeClassifier", "SecureRidgeRegressor"}
"""Estimators that refuse the few rows of scikit-learn's checks."""


def test_the_list_is_in_the_documentation():
    """It has every estimator, and the settings and exceptions of each."""
    names = {type(estimator).__name__ for estimator in CHECKED}
    assert names | OF_MANY_ROWS == set(sklearn.__all__)
    page = Path(__file__).parent.parent / "docs" / "scikit-learn.md"
    rows = re.findall(r"(?m)^`(\w+\(.*\))` \|(.*)$", page.read_text())
    told = {estimator: check.strip(" `") for estimator, check in rows}
    expected = {}
    for estimator, failing in CHECKED.items():
        shown = " ".join(repr(estimator).split()).replace("( ", "(").replace("'", '"')
        expected[shown] = " ".join(failing)
    assert told == expected


@pytest.mark.parametrize("name", sklearn.__all__)
def test_the_constructor_has_every_setting_of_the_strategy(name):
    estimator = getattr(sklearn, name)
    arguments = inspect.signature(estimator).parameters
    settings = settings_of(estimator._strategy)
    for setting in settings:
        if setting.name in OF_A_RUN or setting.name in estimator._fixed:
            assert setting.name not in arguments
        else:
            changed = ONE_PROCESS if estimator._strategy is vf.FDSKLDirect else {}
            default = changed.get(setting.name, setting.default)
            assert arguments[setting.name].default == default
            assert f"\n{setting.name} : {setting.rule}" in estimator.__doc__
    own = {"random_state", "columns_per_party", "rows_per_party"}
    own |= {"label_party", "state_folder"}
    assert set(arguments) <= own | {setting.name for setting in settings}
    assert set(estimator._fixed) <= {setting.name for setting in settings}
    assert "Parameters" in estimator.__doc__
    assert estimator.__doc__.index("masking :") < estimator.__doc__.index("Attributes")


def test_an_argument_that_no_estimator_has():
    with pytest.raises(TypeError, match="n_parties"):
        CoresetRegressor(n_parties=3)


# -- the same as simulate --------------------------------------------------------------


def parties_of(y=None):
    return [vf.Party(own, y=y if j == 2 else None) for j, own in enumerate(BLOCKS)]


def test_the_regressor_is_the_strategy():
    """With the same seed, and coefficients in the order of the columns of X."""
    model = CoresetRegressor(columns_per_party=SPLIT, size=100, random_state=3)
    model.fit(X, Y)
    result = vf.simulate(vf.CoresetVRLR(size=100), parties_of(Y), seed=3)
    found = np.concatenate([model.coef_[own] for own in SPLIT])
    np.testing.assert_allclose(found, np.concatenate(result.model.coef_), atol=1e-5)
    np.testing.assert_allclose(model.coef_, [1, 2, 3, 4], atol=1e-5)
    assert model.intercept_ == pytest.approx(5, abs=1e-5)
    assert model.ledger_.bytes_up == result.ledger.bytes_up
    assert model.n_iter_ == 1
    np.testing.assert_allclose(model.predict(X), Y, atol=1e-4)
    np.testing.assert_allclose(model.predict(BLOCKS), model.predict(X))


def test_the_label_party():
    arguments = {"columns_per_party": SPLIT, "size": 100, "random_state": 3}
    first = CoresetRegressor(label_party=0, **arguments).fit(X, Y)
    entries = first.ledger_.entries.values()
    solving = {e.party for e in entries if e.action == "linear_gram_solve"}
    assert solving == {"party-0"}
    for place in (3, -4, "party-0"):
        model = CoresetRegressor(label_party=place, **arguments)
        with pytest.raises(ValueError, match=r"label_party must .* from -3 to 2, got"):
            model.fit(X, Y)


def test_iterations_are_those_of_the_solver():
    model = CoresetRegressor(
        columns_per_party=3, solver="cg", size=100, random_state=0
    ).fit(X[:, :3], Y)
    assert model.n_iter_ == model.result_.metrics["iterations"] > 1


def test_kmeans_is_the_strategy():
    model = CoresetKMeans(columns_per_party=SPLIT, n_clusters=3, random_state=3).fit(X)
    result = vf.simulate(vf.CoresetVKMC(n_clusters=3), parties_of(), seed=3)
    np.testing.assert_array_equal(
        np.hstack([model.cluster_centers_[:, own] for own in SPLIT]),
        np.hstack(result.model.cluster_centers_),
    )
    np.testing.assert_array_equal(model.labels_, result.model.predict(BLOCKS))
    distances = ((X - model.cluster_centers_[model.labels_]) ** 2).sum()
    assert model.inertia_ == pytest.approx(distances)
    assert model.score(X) == pytest.approx(-model.inertia_)
    np.testing.assert_array_equal(model.predict(X[7:9]), model.labels_[7:9])


@pytest.mark.parametrize("classes", [["no", "yes"], ["a", "b", "c"]])
def test_the_classifier_is_the_strategy(classes):
    """Classes have any names; probabilities are those of the model."""
    codes = np.digitize(X[:, 0] * X[:, 1], np.linspace(-1, 1, len(classes) + 1)[1:-1])
    y = np.array(classes)[codes]
    direct = {"rows": 200, "features": 50}
    model = KernelClassifier(columns_per_party=SPLIT, random_state=3, **direct)
    model.fit(X, y)
    target = "binary" if len(classes) == 2 else "multiclass"
    strategy = vf.FDSKLDirect(target=target, **direct)
    result = vf.simulate(strategy, parties_of(codes), seed=3)
    assert model.classes_.tolist() == classes
    expected = result.model.predict(BLOCKS).astype(int)
    np.testing.assert_array_equal(model.predict(X), model.classes_[expected])
    scores = result.model.decision_function(BLOCKS)
    np.testing.assert_allclose(
        model.decision_function(X), scores[:, 0] if len(classes) == 2 else scores
    )
    chances = model.predict_proba(X)
    assert chances.shape == (400, len(classes))
    np.testing.assert_allclose(chances.sum(axis=1), 1)
    assert model.score(X, y) > 0.7


def test_probabilities_of_ridge():
    """They are as often right as they say, to within a tenth.

    They have a threshold of their own: rows near it may have another answer.
    """
    rows = np.repeat(X, 5, axis=0)
    even = np.random.default_rng(1).random(2000)
    y = even < 1 / (1 + np.exp(-3 * rows[:, 0]))
    settings = {"joint_features": 64, "relevance": False}
    model = SecureRidgeClassifier(random_state=0, **settings).fit(rows, y)
    chances = model.predict_proba(rows)
    np.testing.assert_allclose(chances.sum(axis=1), 1)
    assert (chances.argmax(axis=1) == model.predict(rows)).mean() > 0.97
    sure = chances[:, 1] > 0.5
    assert chances[sure, 1].mean() == pytest.approx(y[sure].mean(), abs=0.1)


def test_there_are_no_probabilities_of_the_square_loss():
    model = KernelClassifier(loss="square")
    assert not hasattr(model, "predict_proba")
    model.set_params(loss="logistic")
    assert hasattr(model, "predict_proba")


def test_the_kernel_regressor_is_the_strategy():
    model = KernelRegressor(columns_per_party=SPLIT, random_state=3)
    strategy = vf.FDSKLDirect(target="continuous", loss="square")
    result = vf.simulate(strategy, parties_of(Y), seed=3)
    expected = result.model.predict(BLOCKS)
    np.testing.assert_allclose(model.fit(X, Y).predict(X), expected)


def test_ridge_repeats_to_within_the_rounding_of_shares():
    """Its shares are random, and so is the last digit of the sums that it fits."""
    twice = [
        SecureRidgeRegressor(random_state=3, relevance=False).fit(X, Y) for _ in "ab"
    ]
    first, second = (model.predict(X) for model in twice)
    assert np.abs(first - second).max() < 0.05 * Y.std()


def test_kernel_kmeans_is_the_strategy():
    """With labels in the order of the rows of X."""
    arguments = {"n_clusters": 2, "n_components": 2, "n_init": 2}
    model = KernelKMeans(rows_per_party=ROWS, random_state=3, **arguments)
    labels = model.fit_predict(GROUPS)
    parties = [vf.Party(GROUPS[own]) for own in ROWS]
    result = vf.simulate(vf.FKKMeans(**arguments), parties, seed=3)
    for own, expected in zip(ROWS, result.model.labels_, strict=True):
        np.testing.assert_array_equal(labels[own], expected)
    assert set(labels[:60]) | set(labels[60:]) == {0, 1}
    assert len(set(labels[:60])) == len(set(labels[60:])) == 1
    np.testing.assert_array_equal(model.predict(GROUPS), labels)
    assert model.score(GROUPS) == pytest.approx(-model.inertia_, rel=1e-6)
    assert model.n_iter_ == result.metrics["iterations"]


# -- clusters that forget --------------------------------------------------------------


def test_clusters_forget(tmp_path):
    model = ForgettingKMeans(
        n_clusters=2, rows_per_party=ROWS, state_folder=tmp_path, random_state=0
    ).fit(GROUPS)
    assert len(set(model.labels_[:60])) == len(set(model.labels_[60:])) == 1
    np.testing.assert_array_equal(model.predict(GROUPS), model.labels_)
    before = model.labels_.copy()

    assert model.forget(GROUPS, [5, 0]) is model
    assert model.result_.metrics["removed"] == 2
    model.forget(GROUPS, np.array([119]))
    assert (model.result_.metrics["removed"], model.result_.model.version) == (1, 3)
    assert model.forgotten_.tolist() == [0, 5, 119]
    assert model.labels_[[0, 5, 119]].tolist() == [-1] * 3
    np.testing.assert_array_equal(model.result_.model.sizes_.sum(), 117)
    same = np.delete(model.labels_, [0, 5, 119]) == np.delete(before, [0, 5, 119])
    assert same.all() or not same.any()  # the number of a cluster may change
    assert {path.name for path in tmp_path.iterdir()} == {
        *("server", "party-0", "party-1", "party-2")
    }
    for rows, wrong in (([0], "still in the model"), ([120], "still in the model")):
        with pytest.raises(ValueError, match=wrong):
            model.forget(GROUPS, rows)
    with pytest.raises(ValueError, match=r"the 120 rows passed to fit, .* got 119"):
        model.forget(GROUPS[1:], [1])
    mask = np.arange(120) == 7
    masks = mask, pd.Series(mask), mask.tolist(), mask.astype(int)
    for wrong in (*masks, [7, 7.5], [7, None], [7, True], (7, mask[7]), [[7]], [7, 7]):
        with pytest.raises(ValueError, match=r"^rows must .*not (be )?a mask"):
            model.forget(GROUPS, wrong)
    shuffled = pd.DataFrame(GROUPS).sample(frac=1, random_state=0)
    with pytest.raises(ValueError, match="X does not have the default index"):
        model.forget(shuffled, shuffled.index[:2])
    assert model.forgotten_.tolist() == [0, 5, 119]


def test_a_run_that_fails_leaves_no_request(tmp_path, monkeypatch):
    """The next one forgets its own rows alone."""
    model = ForgettingKMeans(
        n_clusters=2, rows_per_party=ROWS, state_folder=tmp_path, random_state=0
    ).fit(GROUPS)
    with monkeypatch.context() as broken:
        broken.setattr(ForgettingKMeans, "_run", lambda *arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model.forget(GROUPS, [3, 90])
    assert not list(tmp_path.rglob("forget.txt"))
    assert model.forget(GROUPS, [4]).forgotten_.tolist() == [4]
    assert model.result_.metrics["removed"] == 1


def test_clusters_without_a_folder_do_not_forget():
    model = ForgettingKMeans(n_clusters=2, random_state=0)
    with pytest.raises(NotFittedError):
        model.forget(GROUPS, [0])
    model.fit(GROUPS)
    with pytest.raises(ValueError, match="state_folder must"):
        model.forget(GROUPS, [0])
    rows = model.predict(GROUPS)
    distances = ((GROUPS - model.cluster_centers_[rows]) ** 2).sum()
    assert model.score(GROUPS) == pytest.approx(-distances)


# -- how X is split --------------------------------------------------------------------


def test_one_x_and_blocks_are_the_same():
    blocks = [X[:, :1], X[:, 1:]]
    arguments = {"size": 100, "random_state": 3}
    one = CoresetRegressor(columns_per_party=[1, 3], **arguments).fit(X, Y)
    model = CoresetRegressor(**arguments).fit(blocks, Y)
    np.testing.assert_allclose(model.coef_, one.coef_, atol=1e-5)
    np.testing.assert_allclose(model.predict(blocks), one.predict(blocks), atol=1e-4)
    assert model.score(blocks, Y) == pytest.approx(one.score(X, Y))
    with pytest.raises(ValueError, match="columns_per_party must be None"):
        one.fit(blocks, Y)
    with pytest.raises(ValueError, match="2 arrays of shapes"):
        model.predict(blocks[::-1])


def test_blocks_of_rows():
    arguments = {"n_clusters": 2, "random_state": 3}
    model = ForgettingKMeans(**arguments).fit([GROUPS[:20], GROUPS[20:]])
    one = ForgettingKMeans(rows_per_party=[20, 100], **arguments).fit(GROUPS)
    np.testing.assert_array_equal(model.cluster_centers_, one.cluster_centers_)
    np.testing.assert_array_equal(
        model.predict([GROUPS[:5], GROUPS[5:]]), model.predict(GROUPS)
    )
    with pytest.raises(ValueError, match="rows_per_party must be None"):
        one.fit([GROUPS[:20], GROUPS[20:]])


def test_names_of_columns():
    frame = pd.DataFrame(X, columns=list("abcd"))
    names = [["d", "a"], ["b"], ["c"]]
    arguments = {"size": 100, "random_state": 3}
    model = CoresetRegressor(columns_per_party=names, **arguments).fit(frame, Y)
    assert model.feature_names_in_.tolist() == list("abcd")
    assert [own.tolist() for own in model.columns_per_party_] == SPLIT
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame[list("abdc")])
    frames = CoresetRegressor(**arguments).fit([frame[["a"]], frame[["b"]]], Y)
    assert frames.n_features_in_ == 2


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        (0, "from 1 to n_features, got 0 with n_features = 4"),
        (5, "from 1 to n_features, got 5 with n_features = 4"),
        ("ab", "a list with an item for each party, got 'ab'"),
        (2.0, "a list with an item for each party, got 2.0"),
        ([], r"counts of at least 1 .* n_features = 4, got \[\]"),
        ([2, 1], r"counts of at least 1 .* n_features = 4, got \[2, 1\]"),
        ([4, 0], r"counts of at least 1 .* n_features = 4, got \[4, 0\]"),
        ([2, [2, 3]], "either counts or lists"),
        (["a", "b"], "either counts or lists"),
        ([[0, 1], [2, 4]], "contains 4, but X has n_features = 4"),
        ([["x0", "x1"], ["x2", "y"]], "contains 'y', but X has n_features = 4"),
        ([[0, 1], [2]], "each of the n_features = 4 items exactly"),
        ([[0, 1], [1, 2, 3]], "each of the n_features = 4 items exactly"),
        ([[0, 1, 2, 3], []], "at least one item for each party"),
    ],
)
def test_columns_that_do_not_fit(given, wrong):
    with pytest.raises(ValueError, match=f"^columns_per_party .*{wrong}"):
        CoresetRegressor(columns_per_party=given).fit(X, Y)


@pytest.mark.parametrize(
    ("estimator", "data", "wrong"),
    [
        (
            KernelKMeans(rows_per_party=[60, 61]),
            (GROUPS,),
            "^rows_per_party .* n_samples = 120, got",
        ),
        (CoresetRegressor(), (X[:10], Y[:10]), "'gram', size must be at least 20"),
        (CoresetRegressor(alpha=1.0), (X, Y), "alpha must be 0 without a regularizer"),
        (KernelClassifier(), (X, np.ones(400)), "y must have at least two classes"),
    ],
)
def test_data_that_do_not_fit(estimator, data, wrong):
    """With what scikit-learn's users expect, and the sentence of the strategy."""
    with pytest.raises(ValueError, match=wrong):
        estimator.fit(*data)


# -- habits of scikit-learn ------------------------------------------------------------


def test_random_states():
    """A generator gives another seed each time, and no seed is one of each party."""
    model = CoresetKMeans(n_clusters=3, random_state=np.random.RandomState(0))
    seeds = [model.fit(X).result_.seed for _ in "ab"]
    again = model.set_params(random_state=np.random.RandomState(0)).fit(X)
    assert again.result_.seed == seeds[0] != seeds[1]
    assert model.set_params(random_state=None).fit(X).result_.seed is None
    with pytest.raises(ValueError, match="Seed must be"):
        model.set_params(random_state=-1).fit(X)


def test_a_search_and_a_pipeline():
    """Parameters of a search are those of the strategy; errors of a fold are told."""
    model = make_pipeline(StandardScaler(), CoresetKMeans(n_init=1, random_state=0))
    search = GridSearchCV(model, {"coresetkmeans__n_clusters": [1, 4]}, cv=2)
    assert search.fit(X).best_params_ == {"coresetkmeans__n_clusters": 4}
    best = search.best_estimator_[-1]
    assert clone(best).get_params() == best.get_params()
    assert not hasattr(clone(best), "ledger_")
    copied = pickle.loads(pickle.dumps(best))
    assert copied.ledger_.bytes_up == best.ledger_.bytes_up
    assert copied.result_.metrics == best.result_.metrics


PARTITIONERS = {
    "VerticalSizePartitioner": {"partition_sizes": [1, 2, 1]},
    "VerticalEvenPartitioner": {"num_partitions": 3},
}


@pytest.mark.parametrize("name", PARTITIONERS)
def test_partitioners_of_flower_datasets(name):
    """As ``columns_per_party``, unchanged, and by the blocks that they make."""
    module = pytest.importorskip(
        "flwr_datasets.partitioner", reason="Flower Datasets is not installed"
    )
    datasets = pytest.importorskip("datasets")
    frame = pd.DataFrame(X, columns=list("abcd"))
    partitioner = getattr(module, name)(**PARTITIONERS[name], seed=2)
    arguments = {"size": 100, "random_state": 3}
    model = CoresetRegressor(columns_per_party=partitioner, **arguments)
    for _ in range(2):
        model.fit(frame, Y)
        np.testing.assert_allclose(model.coef_, [1, 2, 3, 4], atol=1e-5)
    assert not partitioner.is_dataset_assigned()
    split = [frame.columns[own].tolist() for own in model.columns_per_party_]

    partitioner.dataset = datasets.Dataset.from_pandas(frame)
    blocks = [partitioner.load_partition(j) for j in range(3)]
    assert [block.column_names for block in blocks] == split
    same = CoresetRegressor(**arguments).fit(blocks, Y)
    np.testing.assert_allclose(same.predict(blocks), model.predict(frame), atol=1e-4)
    assert split != [["a"], ["b", "c"], ["d"]]  # it shuffles
