"""Attacks on the messages of FK k-means, and their tables, on small data."""

import json
from functools import partial

import numpy as np
import pytest
from measured import run

from simulations import kernel_kmeans_attacks as attacks
from vfl_flower import FKKMeans
from vfl_flower.numerics.kernel_embedding import embed_rows
from vfl_flower.numerics.kmeans import assign
from vfl_flower.strategies.kernel_kmeans import training as strategies

# --- Data and messages ----------------------------------------------------------------


@pytest.fixture
def brief(monkeypatch):
    """Give the runs few iterations: what is tested is what they have sent."""
    monkeypatch.setitem(attacks.REAL, "iterations", 3)


def test_the_sums_are_those_that_the_strategy_has(monkeypatch):
    """What was sent, added up by the attacker, is what the server works with."""
    given, cluster = [], strategies.summed_kmeans

    def spy(ask, *arguments):
        def asking(request):
            given.append((request, ask(request)))
            return given[-1][1]

        return cluster(asking, *arguments)

    monkeypatch.setattr(strategies, "summed_kmeans", spy)
    grid = attacks.Watched(attacks.split(attacks.load("wine")))
    FKKMeans(3, 5, n_init=2, iterations=3, seed=1).start(grid)
    seen = attacks.passes(grid)
    assert len(seen) == len(given) - 1 > 2
    for mine, (request, theirs) in zip(seen, given[1:], strict=True):
        np.testing.assert_array_equal(mine.before, request.sizes)
        np.testing.assert_array_equal(mine.centers, request.centers)
        for name in ("sizes", "counts", "sums"):
            np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name))


def test_whole_clusters_are_summed_without_coins(brief):
    seen, H = attacks.watched_sums(attacks.load("wine"), 1, whole=True, starts=2)
    for given in seen:
        for j, centers in enumerate(given.centers):
            labels, _ = assign(H, centers)
            for cluster in np.flatnonzero(given.before[j] >= attacks.LEAST_ROWS):
                expected = H[labels == cluster].sum(axis=0)
                np.testing.assert_allclose(given.sums[j, cluster], expected, atol=1e-6)
    seen, _ = attacks.watched_sums(attacks.load("wine"), 1, whole=False, starts=2)
    assert not np.allclose(seen[0].counts, seen[0].sizes)


def test_points_are_in_the_order_of_the_rows(brief):
    X = attacks.load("wine")
    H, gamma = attacks.watched_points(X, 5, 1)
    grid = attacks.Watched(attacks.split(X))
    settings = {"clustering": "coreset", "coreset_size": 3 * len(X), **attacks.REAL}
    FKKMeans(3, 5, n_init=1, seed=1, **settings).start(grid)
    part = grid.memories()[0].part
    np.testing.assert_allclose(H, embed_rows(part, X), atol=1e-9)
    assert gamma == part["gamma"]


# --- Attacks --------------------------------------------------------------------------


def two_passes():
    """Return two passes over three rows of one of two clusters: one joins it."""
    rows = np.arange(1.0, 7).reshape(3, 2)
    centers = np.array([[[3.0, 4.0], [90.0, 90.0]]])
    before = [np.array([[n, 5]]) for n in (30, 31)]
    totals = [30 * rows[0], 30 * rows[0] + rows[2]]
    return rows, [
        attacks.Seen(
            centers, b, b.astype(float), b.astype(float), np.array([[t, 0 * t]])
        )
        for b, t in zip(before, totals, strict=True)
    ]


@pytest.mark.parametrize("attack", [attacks.differences, attacks.averaged])
def test_a_row_that_joins_a_cluster_is_found(attack):
    """The other cluster has too few rows to send a sum."""
    rows, seen = two_passes()
    np.testing.assert_allclose(attack(seen), [rows[2]])


def test_errors_are_relative_to_the_mean():
    H = np.array([[0.0], [2.0]])
    np.testing.assert_allclose(attacks.nearest(np.array([[0.5], [9.0]]), H), [0.5, 1.5])
    assert np.isinf(attacks.nearest(np.zeros((0, 1)), H)).all()


def test_rows_follow_from_linear_points():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 3))
    known = np.arange(20)
    assert attacks.follow(X @ rng.normal(size=(3, 3)), X, known) < 0.01
    assert attacks.follow(rng.normal(size=(50, 3)), X, known) > 0.9


def test_distances_give_rows_up_to_a_rotation():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 3))
    squares = ((X[:, None] - X) ** 2).sum(axis=2)
    rows = attacks.scaling(squares, 3)
    assert attacks.up_to_rotation(rows, X) < 1e-9
    assert (
        attacks.up_to_linear(rows * [1, 2, 3], X)
        < 1e-9
        < attacks.up_to_rotation(rows[::-1], X)
    )
    values, vectors = np.linalg.eigh(np.exp(-0.1 * squares))
    H = 7 * vectors * np.sqrt(np.maximum(values, 0))  # cosines do not see the length
    np.testing.assert_allclose(attacks.squared_distances(H, 0.1), squares, atol=1e-6)
    assert attacks.correlations(X, X).shape == (3, 3)
    np.testing.assert_allclose(np.diag(attacks.correlations(-X, X)), 1)


# --- Tables ---------------------------------------------------------------------------


def test_whole_sums_show_rows_and_the_default_does_not():
    """Why there are coins: two clusters that differ by a row show that row.

    By default nothing is nearer to a row than what is drawn without knowing any. Nor do
    thirty known rows give the rest, in standard deviations of a column, where a guess
    of the mean has 1; they do from points of the coreset.
    """
    entry = attacks.sums("wine", seeds=1)
    of_whole, _, *of_default = entry["attacks"]
    forms = [one["form"] for one in entry["attacks"]]
    assert forms == [form for form in attacks.FORMS for _ in attacks.ATTACKS]
    assert of_whole["exact"][0] > 10
    assert of_default[0]["guesses"][0] > 1000
    for one in of_default:
        assert one["exact"] == [0]
        assert one["nearest"][0] > max(0.5, one["blind_nearest"][0])
        assert one["median"][0] > one["blind_median"][0]
    points, differences, draws = (errors[0] for errors in entry["known"].values())
    assert points < 0.4
    assert differences > max(0.85, draws - 0.1)
    _, page, _ = attacks.sums_page({"wine": entry})
    assert page.count("below 1e-06") == 1


def test_more_components_show_more():
    entry = attacks.points("wine", seeds=1)
    few, many = entry["runs"]
    assert (few["s"], many["s"]) == (5, 20)
    for name in ("kernel", "rotation", "linear"):
        assert many[name][0] < few[name][0]
    assert few["distances"][0] < many["distances"][0] < 1
    assert many["linear"][0] < 0.2
    # Components of few dimensions are each near several columns.
    assert all(0.4 < run["column"][0] < 0.9 for run in (few, many))


def test_the_command_writes_the_sets_that_are_asked_for(tmp_path, monkeypatch):
    short = partial(attacks.iterations, times=(2,), long=4)
    measured, *others = attacks.TABLES["iterations"]
    assert measured is attacks.iterations
    assert list(others[1]) == [*attacks.SETS]
    monkeypatch.setitem(attacks.TABLES, "iterations", (short, *others))
    words = ["iterations", "--datasets", "iris", "--seeds", "1"]
    run(attacks.app, *words, "--output-dir", tmp_path)
    stem = tmp_path / "kernel_kmeans_attacks-iterations"
    figures = json.loads(stem.with_suffix(".json").read_text())["iterations"]
    assert list(figures) == ["iris"]
    assert "## Iterations" in stem.with_suffix(".md").read_text()
