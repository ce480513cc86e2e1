"""What an attacker makes of its view of federated kernel k-means.

The server's view is the transcript; a party's view is its rows, its memory and what it
was sent. The attacks are in the order of docs/papers/kernel_kmeans.md; each says what
it finds, also where that is more than one would like.
"""

from contextlib import suppress

import numpy as np
import pytest
from draws import repeated_draws, stream
from scipy.optimize import least_squares, linear_sum_assignment

from simulations.kernel_kmeans_attacks import (
    components,
    correlations,
    load,
    scaling,
    squared_distances,
    up_to_rotation,
)
from vfl_flower import Party
from vfl_flower.numerics.kernel_embedding import embed_rows, feature_blocks
from vfl_flower.numerics.kernel_kmeans import compose, feature_range, stack, step_size
from vfl_flower.secure_aggregation.groups import group
from vfl_flower.strategies import FKKMeans
from vfl_flower.testing import Recorder

SMALL = {"n_clusters": 3, "n_components": 4, "n_features": 20, "iterations": 3}
SMALL |= {"clustering": "coreset", "coreset_size": 30, "n_init": 1, "subspace_tol": 0}
REAL = {"n_components": 20, "n_features": 50, "iterations": 20, "subspace_tol": 0.01}


def exponential(n, d=3, seed=0):
    return np.random.default_rng(seed).exponential(size=(n, d))


def thirds(X):
    return [X[m::3] for m in range(3)]


class Done(Exception):
    """The messages that an attack needs have been sent."""


class FirstProducts(Recorder):
    """Ends the run after the first iteration."""

    def _push(self, message):
        if message.metadata.message_type.endswith("_local"):
            raise Done
        return super()._push(message)


def watch(parts, seed=None, grid=Recorder, **settings):
    """Return the grid of a run.

    Without a seed features come from the operating system: here from a generator, so
    that an attack gives the same result each time. The attacker does not know it.
    """
    watching = grid([Party(rows) for rows in parts])
    with repeated_draws(0), suppress(Done):
        FKKMeans(**SMALL | settings, seed=seed).start(watching)
    return watching


def first_products(parts, seed, **settings):
    return watch(parts, seed, FirstProducts, iterations=1, **settings)


def asked(grid, action, party=0):
    """Return the messages to one party."""
    entries = [e for e in grid.transcript if e.action == action and not e.up]
    return [e for e in entries if e.party == party]


def sent(grid, action, name, party):
    """Return what one party has sent under a name in a step."""
    entries = [e for e in grid.transcript if e.action == action and e.up]
    return [e.values[name] for e in entries if e.party == party and name in e.values]


class Attacker:
    """What the messages to a party say, with the seed of the features added.

    Apart from that seed, which goes encrypted, the server has written all of them.
    """

    def __init__(self, grid, seed):
        self.grid, first = grid, asked(grid, "kernel_kmeans_gram")[0]
        setup = {k.removeprefix("setup."): v for k, v in first.values.items()}
        self.setup = {"shift": 0.0, "scale": 1.0, **setup, "seed": seed}
        self.D, self.D_1 = self.setup["D"], self.setup["D_1"]

    def features(self, X, t=1):
        """Return A_t of rows, without the factor 1 / sqrt(D)."""
        start, stop = feature_range(t, self.D, self.D_1)
        return np.vstack(list(feature_blocks(self.setup, X, start, stop)))

    def gram(self, party, decode=None):
        """Return what a party sent as W_1^T W_1."""
        triangle = sent(self.grid, "kernel_kmeans_gram", "gram", party)[0]
        triangle = triangle if decode is None else decode(triangle)
        G = np.zeros((self.D_1, self.D_1))
        G[np.triu_indices(self.D_1)] = triangle
        return G + np.triu(G, 1).T

    def part(self):
        """Return the map from features to the embedding, of all R that were sent."""
        P, t = np.zeros((0, 0)), 0
        for e in self.grid.transcript:
            if e.party == 0 and not e.up and "R" in e.values:
                t += 1
                P = compose(P, e.values["R"], step_size(t, self.D, self.D_1))
        return {**self.setup, "P": P}


def seed_of_run(grid):
    """Return the seed of the features that a run with a seed tells in each frame."""
    seed = asked(grid, "kernel_kmeans_begin")[0].frame["seed"]
    return stream(seed, 0, "features").bytes(16).hex()


def seed_of_parties(grid):
    return parts_of(grid)[0]["seed"]


def parts_of(grid):
    return [memory.part for memory in grid.memories()]


def solve(residuals, mean, starts=8, seed=0):
    """Return cost and row of least residual; starts are at the mean and around it."""
    rng, best = np.random.default_rng(seed), (np.inf, mean)
    for start in range(starts):
        fit = least_squares(
            residuals, mean + (rng.normal(size=len(mean)) if start else 0)
        )
        best = min(best, (fit.cost, fit.x), key=lambda pair: pair[0])
        if best[0] < 1e-16:
            break
    return best


def solve_up_to_sign(function, values, mean, starts=8):
    """Return the row at which a function is `values` or less them."""
    solutions = [
        solve(lambda x, s=s: function(x) - s * values, mean, starts) for s in (1, -1)
    ]
    return min(solutions, key=lambda pair: pair[0])[1]


def relative(guess, true, mean):
    """Return the error relative to that of the mean of all rows, a guess."""
    return np.linalg.norm(guess - true) / np.linalg.norm(true - mean)


def outside(G, A):
    """Return how far rows of features are outside the range of G, from 0 to 1."""
    values, vectors = np.linalg.eigh(G)
    inside = A @ vectors[:, values > 1e-9 * values[-1]]
    return np.sqrt(np.maximum(0, 1 - (inside**2).sum(axis=1) / (A**2).sum(axis=1)))


def auc(members, others):
    """Return how often a member's score is the lower one; a guess has 1/2."""
    less = members[:, None] < others
    return float((less + 0.5 * (members[:, None] == others)).mean())


# -- (a) products of single parties in the clear, and the seed known -------------------


def test_a_party_of_one_row_shows_the_row():
    """W^T W = w^T w gives w up to its sign, and cos(omega x + b) the row x."""
    X = exponential(41)
    grid = watch([X[:20], X[20:40], X[40:]], seed=1, masking="plain")
    attacker, mean = Attacker(grid, seed_of_run(grid)), X.mean(axis=0)
    values, vectors = np.linalg.eigh(attacker.gram(2))
    assert values[-2] < 1e-9 * values[-1]
    a = vectors[:, -1] * np.sqrt(values[-1] * attacker.D_1)
    x = solve_up_to_sign(lambda x: attacker.features(x[None])[0], a, mean)
    assert relative(x, X[40], mean) < 1e-6


def test_a_party_of_few_rows_shows_each_of_them():
    """Theorem 4 says that U A gives the Gram matrix of A for each orthogonal U.

    But of U A only A is features of rows: a row is the party's where its features are
    in the range of the Gram matrix. No candidates are needed: least squares find them.
    """
    X, n = exponential(60), 6
    parts = [X[n::2], X[n + 1 :: 2], X[:n]]
    grid = watch(parts, seed=1, masking="plain", n_features=50)
    attacker, mean = Attacker(grid, seed_of_run(grid)), X.mean(axis=0)
    G = attacker.gram(2)
    scores = outside(G, attacker.features(X))
    assert scores[:n].max() < 1e-6 < 1e-4 < scores[n:].min()
    values, vectors = np.linalg.eigh(G)
    null = vectors[:, values < 1e-9 * values[-1]]
    assert null.shape == (50, 50 - n)
    rng, rows = np.random.default_rng(0), []
    for _ in range(60):
        fit = least_squares(
            lambda x: (attacker.features(x[None]) @ null)[0],
            mean + 1.5 * rng.normal(size=3),
        )
        rows += [fit.x] if fit.cost < 1e-16 else []
    distances = np.linalg.norm(np.array(rows)[:, None] - X[:n], axis=2)
    errors = distances.min(axis=0) / np.linalg.norm(X[:n] - mean, axis=1)
    assert np.count_nonzero(errors < 1e-3) >= n - 1
    assert distances.min(axis=1).max() < 1e-3  # and no row that is not there


# -- (b) the same attack on the default ------------------------------------------------

RUNS = 8


def first_gram_decoded(attacker, masking):
    """Return what the third party sent under its mask as if it were its W_1^T W_1."""
    bound = asked(attacker.grid, "kernel_kmeans_gram")[0].frame["bound.gram"]
    return attacker.gram(2, group(masking, bound, 3).decode)


def test_products_under_masks_say_nothing_of_who_has_a_row():
    """Also where the seed is known: mean AUC 1/2 within six standard errors.

    Rows are dealt anew in each run, so that 1/2 is the mean of any score that has
    nothing to do with who has them. Over 150 runs its deviation was 0.12.
    """
    scores = {"ring": [], "plain": []}
    for run in range(RUNS):
        X = np.random.default_rng(run).permutation(exponential(30))
        for masking, each in scores.items():
            grid = first_products([X[:10], X[10:20], X[20:]], run, masking=masking)
            attacker = Attacker(grid, seed_of_run(grid))
            G = first_gram_decoded(attacker, masking)
            # Of noise the directions of the ten largest eigenvalues, as of ten rows.
            values, vectors = np.linalg.eigh(G)
            G = vectors[:, -10:] * np.abs(values[-10:]) @ vectors[:, -10:].T
            outsides = outside(G, attacker.features(X))
            each.append(auc(outsides[20:], outsides[:20]))
    assert min(scores["plain"]) == 1
    assert abs(np.mean(scores["ring"]) - 0.5) < 6 * 0.12 / np.sqrt(RUNS)


def test_a_row_is_not_found_from_masked_products_with_the_seed():
    """No better than the mean of all rows, whose error is 1, over eight runs.

    Of 620 draws of noise two were below 0.5, and as many as the cube of an error are
    below it: a false alarm has a chance below 1e-9.
    """
    X = exponential(41)
    parts, mean, errors = [X[:20], X[20:40], X[40:]], X.mean(axis=0), []
    for run in range(RUNS):
        grid = first_products(parts, run)
        attacker = Attacker(grid, seed_of_run(grid))
        _, vectors = np.linalg.eigh(first_gram_decoded(attacker, "ring"))
        a = np.sqrt(2) * vectors[:, -1] / np.abs(vectors[:, -1]).max()
        x = solve_up_to_sign(lambda x, b=attacker: b.features(x[None])[0], a, mean, 1)
        errors.append(relative(x, X[40], mean))
    assert min(errors) > 0.001
    assert np.median(errors) > 0.5


def test_without_the_seed_products_say_nothing_of_who_has_a_row():
    """In the clear as they were: mean AUC over 200 guessed seeds, five errors.

    With features of another seed each two rows change places as often as not, since
    (omega, b) and (-omega, b + omega (x + x')) are as likely.
    """
    X = exponential(30)
    grid = watch([X[:10], X[10:20], X[20:]], masking="plain", n_features=50)
    right = Attacker(grid, seed_of_parties(grid))
    scores = outside(right.gram(2), right.features(X))
    assert auc(scores[20:], scores[:20]) == 1
    rng, areas = np.random.default_rng(0), []
    for _ in range(200):
        guess = Attacker(grid, rng.bytes(16).hex())
        scores = outside(guess.gram(2), guess.features(X))
        areas.append(auc(scores[20:], scores[:20]))
    assert abs(np.mean(areas) - 0.5) < 5 * np.std(areas) / np.sqrt(200)


def test_the_seed_of_a_run_without_one_is_not_in_the_frame():
    """What the frame has gives the features only with the first party's own secret."""
    grid = watch(thirds(exponential(30)))
    assert seed_of_run(grid) != seed_of_parties(grid)
    seeded = watch(thirds(exponential(30)), seed=1)
    assert seed_of_run(seeded) == seed_of_parties(seeded)


# -- (c) what a party makes of the sums ------------------------------------------------


def others_gram(grid, t):
    """Return V and V^T G V of all other parties' W_t, by party 0 alone, t = 1 or 2.

    R_t = v_i sqrt(1 - cut / lambda_i) shows v_i and lambda_i / cut. One number is left,
    the cut, which the bounds of the sums show to a factor of two; here it is given.
    """
    (part, *_), rows = parts_of(grid), grid._parties[grid.get_node_ids()[0]].X
    insider, asks = Attacker(grid, part["seed"]), asked(grid, "kernel_kmeans_gram")
    B = np.zeros((len(rows), 0))
    for k in range(1, t + 1):
        W = stack(insider.features(rows, k), B, step_size(k, insider.D, insider.D_1))
        R = asks[k].values["R"]
        B = W @ R
    shares = (R**2).sum(axis=0)
    V, ratios = R / np.sqrt(shares), 1 / (1 - shares)
    everyone = range(len(grid.get_node_ids()))
    cut = V[:, 0] @ true_gram(grid, everyone, t) @ V[:, 0] / ratios[0]
    return V, np.diag(cut * ratios) - V.T @ (W.T @ W) @ V


def true_gram(grid, places, t):
    """Return W_t^T W_t of some parties, by what all know together."""
    known = Attacker(grid, seed_of_parties(grid))
    rows = [grid._parties[node].X for node in grid.get_node_ids()]
    rows = np.vstack([rows[m] for m in places])
    B = np.zeros((len(rows), 0))
    for k in range(1, t + 1):
        W = stack(known.features(rows, k), B, step_size(k, known.D, known.D_1))
        B = W @ asked(grid, "kernel_kmeans_gram")[k].values["R"]
    return W.T @ W


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("t", [1, 2])
def test_a_party_knows_the_sum_of_all_others_in_the_leading_directions(count, t):
    """Of two parties the other's own: over 90 % of the trace of its Gram matrix."""
    parts = [exponential(60)[m::count] for m in range(count)]
    grid = watch(parts, allow_two_parties=count == 2)
    V, G = others_gram(grid, t)
    true = true_gram(grid, range(1, count), t)
    np.testing.assert_allclose(G, V.T @ true @ V, rtol=1e-6, atol=1e-9)
    assert G.trace() > 0.9 * true.trace()


def test_a_party_tells_rows_of_others_that_have_few_together():
    """Two others of three rows: V^T a(x) in the range of rank 6 of 20 directions."""
    X = exponential(86)
    grid = watch([X[:40], X[80:83], X[83:]], **REAL)
    V, G = others_gram(grid, 1)
    assert V.shape[1] >= 15
    values = np.linalg.eigvalsh(G)
    assert values[-7] < 1e-8 * values[-1]
    scores = outside(G, Attacker(grid, seed_of_parties(grid)).features(X) @ V)
    assert scores[80:].max() < 1e-3 < 1e-2 < scores[40:80].min()


def test_of_two_parties_one_finds_the_others_only_row():
    X = exponential(31)
    grid = watch([X[:30], X[30:]], allow_two_parties=True)
    V, G = others_gram(grid, 1)
    insider, mean = Attacker(grid, seed_of_parties(grid)), X[:30].mean(axis=0)
    values, vectors = np.linalg.eigh(G)
    assert values[-2] < 1e-6 * values[-1]
    w = vectors[:, -1] * np.sqrt(values[-1] * insider.D_1)
    x = solve_up_to_sign(lambda x: (insider.features(x[None]) @ V)[0], w, mean)
    assert relative(x, X[30], mean) < 1e-6


# -- (d) what is left to the server: the points of the coreset -------------------------


def coreset(grid, count):
    return [sent(grid, "kernel_kmeans_sample", "points", m)[0] for m in range(count)]


def matched(guess, true):
    """Return |correlation| of each true column with its own found one."""
    matrix = correlations(guess, true)
    return matrix[linear_sum_assignment(-matrix)]


def test_points_show_distances_and_rows_up_to_a_rotation():
    """Without the seed, from points and gamma alone; a guess has 0 and 1."""
    X = load("wine")
    order = np.vstack(thirds(X))
    grid = watch(thirds(X), coreset_size=600, **REAL)
    gamma = asked(grid, "kernel_kmeans_gram")[0].values["setup.gamma"]
    squares = squared_distances(np.vstack(coreset(grid, 3)), gamma)
    true = ((order[:, None] - order) ** 2).sum(axis=2)
    above = np.triu_indices(len(X), 1)
    assert np.corrcoef(squares[above], true[above])[0, 1] > 0.97
    assert up_to_rotation(scaling(squares, 13), order) < 0.15
    shuffled = np.random.default_rng(0).permutation(order)
    assert up_to_rotation(scaling(squares, 13), shuffled) > 0.8


def test_points_show_columns_that_are_independent_and_not_normal():
    """With 300 rows it hangs on the rounding of sums; with 900 the least is 0.949."""
    X = exponential(900)
    grid = watch(thirds(X), coreset_size=2700, **REAL)
    gamma = asked(grid, "kernel_kmeans_gram")[0].values["setup.gamma"]
    rows = scaling(squared_distances(np.vstack(coreset(grid, 3)), gamma), 3)
    order = np.vstack(thirds(X))
    assert (matched(components(rows), order) > 0.9).all()
    permuted = np.random.default_rng(0).permuted(order, axis=0)
    assert (matched(permuted, order) < 0.3).all()


@pytest.mark.parametrize("repeats", [1, 4])
def test_a_party_of_as_few_distinct_rows_as_clusters_sends_their_points(repeats):
    """Its cost is 0, so it sends no draws, and its centres are its rows."""
    X = exponential(62)
    grid = watch([X[:30], X[30:60], np.repeat(X[60:], repeats, axis=0)])
    assert sent(grid, "kernel_kmeans_local", "cost", 2) == [0.0]
    (weights,) = sent(grid, "kernel_kmeans_sample", "weights", 2)
    assert weights.tolist() == [repeats, repeats]
    points = coreset(grid, 3)[2]
    rows = embed_rows(parts_of(grid)[0], X[60:])
    assert np.linalg.norm(points[:, None] - rows, axis=2).min(axis=0).max() < 1e-9


@pytest.mark.parametrize("known", [True, False])
def test_who_knows_the_seed_finds_the_rows_of_the_coreset(known):
    """A run with a seed, or a party that tells it: masks do not help.

    Each point is s numbers, h(x) = [a_1(x) .. a_T(x)] P, and the server made P. In [1]
    the server knows the seed.
    """
    X = exponential(60)
    grid = watch(thirds(X), seed=1 if known else None)
    guess = Attacker(grid, seed_of_run(grid)).part()
    points, mean, errors = coreset(grid, 3)[1][:2], X.mean(axis=0), []
    rows = embed_rows({**guess, "seed": seed_of_parties(grid)}, X)
    for point in points:
        true = X[np.linalg.norm(rows - point, axis=1).argmin()]
        _, x = solve(lambda x, h=point: embed_rows(guess, x[None])[0] - h, mean, 2)
        errors.append(relative(x, true, mean))
    if known:
        assert max(errors) < 1e-6
    else:
        assert min(errors) > 0.1


def test_without_the_seed_points_do_not_say_which_rows_they_are():
    """Candidates by guessed seeds: mean AUC within five standard errors of 1/2."""
    X = exponential(60)
    grid = watch([X[:20], X[20:40], X[40:]])
    points = np.vstack(coreset(grid, 3))
    right = Attacker(grid, seed_of_parties(grid)).part()

    def scores(part):
        return np.linalg.norm(embed_rows(part, X)[:, None] - points, axis=2).min(axis=1)

    held = scores(right) < 1e-9
    assert 15 <= held.sum() <= 45
    rng, areas = np.random.default_rng(0), []
    for _ in range(150):
        score = scores({**right, "seed": rng.bytes(16).hex()})
        areas.append(auc(score[held], score[~held]))
    assert abs(np.mean(areas) - 0.5) < 5 * np.std(areas) / np.sqrt(150)
    assert auc(scores(right)[held], scores(right)[~held]) == 1
