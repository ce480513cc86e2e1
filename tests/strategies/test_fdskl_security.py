"""What an attacker makes of its view of FDSKL: the label holder's, and the server's.

The label holder's view is its columns, its memory and what it was sent and can open.
The attacks on it are in the order of docs/papers/fdskl-security.md; each says what it
finds, also where that is more than one would like.
"""

import hashlib
import itertools
import warnings
from collections import Counter, defaultdict

import numpy as np
import pytest
from draws import repeated_draws, stream
from faults import Fault, FaultyGrid
from federations import by_columns
from scipy.linalg import orthogonal_procrustes
from scipy.optimize import linear_sum_assignment
from scipy.sparse.csgraph import breadth_first_order, minimum_spanning_tree
from transcripts import actual, is_uniform, patterns

from vfl_flower.numerics.kernel_model import own_features, owned, partial_angles
from vfl_flower.numerics.kernel_solvers import GRID
from vfl_flower.numerics.random_features import RandomFeatures, draw_pairs, features
from vfl_flower.party import sums
from vfl_flower.party.memory import Memory
from vfl_flower.party.sums import PartySums
from vfl_flower.protocol.frame import Frame
from vfl_flower.protocol.messages import unbundle
from vfl_flower.protocol.steps import STEPS as ACTIONS
from vfl_flower.secure_aggregation import masks, relay
from vfl_flower.secure_aggregation.labels import SECRET_DRAW
from vfl_flower.secure_aggregation.limbs import join_limbs
from vfl_flower.strategies import FDSKL, FDSKLDirect, FDSKLPrediction
from vfl_flower.testing import Recorder

HOLDER = 2


def data(widths=(2, 2, 2), n=300, seed=0, kind="exponential"):
    """Return standardised, independent columns, and labels."""
    rng = np.random.default_rng(seed)
    shape = n, sum(widths)
    X = rng.exponential(size=shape)
    if kind == "binary":
        X = (rng.random(shape) < rng.uniform(0.3, 0.7, shape[1])).astype(float)
    if kind == "normal":
        X = rng.normal(size=shape)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    return X, (X**2).sum(axis=1) > np.median((X**2).sum(axis=1))


def parts_of(grid):
    return [memory.part for memory in grid.memories()]


class View:
    """What one party has of a run, opened as far as it can."""

    def __init__(self, grid, index=HOLDER):
        node = grid.get_node_ids()[index]
        self.party, state = grid._parties[node], grid._contexts[node].state
        memory, self.part = state["session"], Memory(state).part
        peers = memory["peers"]
        keys = [peers[k : k + 32] for k in range(0, len(peers), 32)]
        self.messages, self.frame = [], {}
        for e in grid.transcript:
            if e.party == index and not e.up and e.action != "hello":
                values = dict(e.values)
                opening = PartySums(
                    memory["private_key"], keys, Frame.parse(e.frame), True
                )
                opening.open(ACTIONS[e.action], values, {}, lambda *_: None)
                self.messages.append(values)
                self.frame = e.frame

    def value(self, name):
        """Return the first value of a name."""
        return next(m[name] for m in self.messages if name in m)

    def angles(self):
        """Return rows and the others' angles of them, in turns.

        Constants of a feature are left on them. Of a doubly stochastic run, the later
        half of the iterations, and the features that all of those have.
        """
        blocks = []
        for message in self.messages:
            starts = "angles", "at.angles"
            own = {k: v for k, v in message.items() if k.startswith(starts)}
            rows = message.get("at.rows", message.get("problem.rows"))
            if not own:
                continue
            summed = np.concatenate([own[k] for k in sorted(own)])
            summed = summed.reshape(len(rows), -1)
            M, bits = summed.shape[1], 8 * summed.itemsize
            mine = partial_angles(self.part, self.party.X[rows], M, bits)
            turns = (summed - mine) / (1.0 if bits == 64 else 2.0**bits)
            blocks.append((rows.astype(int), turns))
        blocks = blocks[len(blocks) // 2 :]
        M = min(turns.shape[1] for _, turns in blocks)
        rows = np.concatenate([rows for rows, _ in blocks])
        rows, first = np.unique(rows, return_index=True)
        return rows, np.vstack([turns[:, :M] for _, turns in blocks])[first]


def made(settings, **more):
    """Return FDSKLDirect, or what the settings name as the strategy."""
    given = {"strategy": FDSKLDirect, **settings, **more}
    return given.pop("strategy")(**given)


def watch(table, widths=(2, 2, 2), seed=None, **settings):
    """Return the label holder's view, the others' angles in it, and their true columns.

    Without a seed features come from the operating system: here from a generator, so
    that an attack finds the same each time. The attacker does not know it.
    """
    strategy = made(settings)
    strategy.seed = seed
    grid = Recorder(by_columns(*table, widths))
    with repeated_draws(0):
        strategy.start(grid)
    view = View(grid, len(widths) - 1)
    rows, turns = view.angles()
    return view, turns, table[0][rows, : sum(widths[:-1])]


DIRECT = {"bits": 16, "features": 256}
DOUBLY = {"strategy": FDSKL, "bits": 16, "step": 1.0, "rows": 512, "features": 512}
"""With half the iterations, and so some 100 rows, the rank-d attack finds whole turns
in 5 of 8 draws only; with these in 8 of 8."""


def real(settings):
    """Return settings for angles that are real numbers."""
    return {key: value for key, value in settings.items() if key != "bits"}


# -- the attacks --------------------------------------------------------------------


def wrap(turns):
    return turns - np.rint(turns)


def kernel_values(turns):
    """Return mean_j cos(2 pi (a_ij - a_kj)), which estimates k(x_i, x_k)."""
    phases = np.exp(2j * np.pi * turns)
    return (phases @ phases.conj().T).real / turns.shape[1]


def unroll(turns):
    """Return angles with their whole turns, up to a constant a feature.

    Differences of rows that are close are below half a turn: go from neighbour to
    neighbour, those with the largest kernel values first.
    """
    distance = 1 + 1e-9 - kernel_values(turns)
    np.fill_diagonal(distance, 0)
    order, before = breadth_first_order(minimum_spanning_tree(distance), 0, False)
    whole = np.zeros_like(turns)
    for i in order[1:]:
        whole[i] = whole[before[i]] + wrap(turns[i] - turns[before[i]])
    return whole


def low_rank(turns, d, share=1.0):
    """Return angles with their whole turns, and T, V: T V^T is X Omega^T / 2 pi.

    Angles with their whole turns are a matrix of rank d, so where rank d and the
    neighbours differ, rank d is right. T and V are known up to one d x d matrix.
    `share` is that of the features with the least spread, which have the fewest wrong
    turns; they stay in order.
    """
    whole = unroll(turns)
    spread = whole.std(axis=0)
    best = np.sort(np.argsort(spread)[: int(share * len(spread))])
    turns, whole = turns[:, best], whole[:, best]
    turns, whole = turns - turns[0], whole - whole[0]
    for _ in range(30):
        mean = whole.mean(axis=0)
        T, s, Vt = np.linalg.svd(whole - mean, full_matrices=False)
        T, V = T[:, :d] * s[:d], Vt[:d].T
        fitted = mean + T @ V.T
        corrected = fitted + wrap(turns - fitted)
        if np.abs(corrected - whole).max() < 0.5:
            break
        whole = corrected
    return corrected, T, V


def factors(turns, d, share=1.0):
    return low_rank(turns, d, share)[1:]


def rotated(T, V, bandwidth):
    """Return columns up to a rotation: the frequencies are N(0, I / bandwidth^2)."""
    return T @ np.linalg.cholesky(V.T @ V / len(V)) * 2 * np.pi * bandwidth


def with_known_features(turns, omega):
    """Return differences to the first row: the linear system of known features."""
    return np.linalg.lstsq(omega / (2 * np.pi), (turns - turns[0]).T)[0].T


def error(actual, true):
    """Return the error relative to a guess of the mean, whose error is 1."""
    actual, true = actual - actual.mean(axis=0), true - true.mean(axis=0)
    return np.linalg.norm(actual - true) / np.linalg.norm(true)


def up_to_linear(actual, true):
    actual, true = actual - actual.mean(axis=0), true - true.mean(axis=0)
    return error(actual @ np.linalg.lstsq(actual, true)[0], true)


def up_to_rotation(actual, true):
    actual, true = actual - actual.mean(axis=0), true - true.mean(axis=0)
    return error(actual @ orthogonal_procrustes(actual, true)[0], true)


def matched(actual, true):
    """Return |correlation| of each true column with its own found one."""
    d = actual.shape[1]
    correlations = np.abs(np.corrcoef(actual.T, true.T)[:d, d:])
    return correlations[linear_sum_assignment(-correlations)]


def ica(values):
    """Return independent components and the matrix that mixes them."""
    from sklearn.decomposition import FastICA

    model = FastICA(whiten="unit-variance", random_state=0, max_iter=1000)
    with warnings.catch_warnings():  # it does not converge where there is nothing
        warnings.simplefilter("ignore")
        return model.fit_transform(values), model.mixing_


# -- (a) angle_masking="paper": all know the features ----------------------------------


@pytest.mark.parametrize(
    ("topology", "settings"), [("ring", DIRECT), ("tree", DOUBLY | {"iterations": 8})]
)
def test_paper_shows_the_label_holder_differences_of_columns(topology, settings):
    widths = 2, 3, 2
    settings = real(settings) | {"angle_masking": "paper", "topology": topology}
    view, turns, true = watch(data(widths), widths, **settings)
    sizes = "gaussian", sum(view.value("setup.shared.widths")), view.part["bandwidth"]
    seed = int(view.value("setup.shared.seed"), 16)
    every = RandomFeatures(*sizes, seed, orthogonal=False).weights(0, turns.shape[1])
    differences = with_known_features(turns, every[0][:, :5])
    true = true - true[0]
    assert len(true) > 50
    assert np.linalg.norm(differences - true) / np.linalg.norm(true) < 1e-6


# -- (b) angle_masking="circle": features are secrets ----------------------------------


@pytest.fixture(scope="module", params=["direct", "doubly"])
def default(request):
    """Return what `watch` does, of a label holder beside two others."""
    return watch(data(), **(DIRECT if request.param == "direct" else DOUBLY))


@pytest.mark.second
@pytest.mark.parametrize("whole", [False, True])
def test_linear_attack_is_no_better_than_a_guess_of_the_mean(default, whole):
    """One-sided, over 400 guesses of features: false-alarm rate below 1e-6.

    The squared error of a guess that has nothing to do with the features is 1 + |C|^2
    plus a term that is 0 on average: below 1 by 5 standard errors of the mean is an
    attack that works.
    """
    view, turns, true = default
    turns = unroll(turns) if whole else wrap(turns - turns[0])
    errors = []
    for seed in range(400):
        part = RandomFeatures("gaussian", 4, view.part["bandwidth"], seed)
        omega = part.weights(0, turns.shape[1])[0]
        errors.append(error(with_known_features(turns, omega), true) ** 2)
    assert np.mean(errors) > 1 - 5 * np.std(errors) / 20
    assert min(errors) > 0.5


def features_of_a_seed(view, count):
    """Return the frequencies of two others with two columns, by the frame's seed."""
    omegas = []
    for j in (0, 1):
        seed = int(stream(view.frame["seed"], j, "features").bytes(16).hex(), 16)
        part = RandomFeatures("gaussian", 2, view.part["bandwidth"], seed)
        omegas.append(part.weights(0, count)[0])
    return np.hstack(omegas)


def test_features_that_a_run_seed_would_give_are_not_those_of_others(default):
    """Without a seed a party's features depend on its secret, not on the frame's."""
    view, turns, true = default
    omega = features_of_a_seed(view, turns.shape[1])
    assert error(with_known_features(unroll(turns), omega), true) > 0.5


def test_a_run_seed_shows_the_label_holder_the_columns():
    """As the class says: who knows the seed knows the features of all."""
    view, turns, true = watch(data(), seed=3, **DIRECT)
    omega = features_of_a_seed(view, turns.shape[1])
    whole, _, _ = low_rank(turns, 4)
    assert error(with_known_features(whole, omega), true) < 1e-4


def test_label_holder_gets_the_columns_up_to_a_linear_map(default):
    """Secret features hide which map, not that there is one: here a guess has 1.

    So a few rows that it knows give it all others.
    """
    view, turns, true = default
    T, V = factors(turns, 4)
    assert up_to_linear(T, true) < 1e-4
    assert up_to_rotation(rotated(T, V, view.part["bandwidth"]), true) < 0.25
    T = np.column_stack([T, np.ones(len(T))])
    assert error((T @ np.linalg.lstsq(T[:8], true[:8])[0])[8:], true[8:]) < 1e-2


@pytest.mark.parametrize(("bits", "precision"), [(8, 3e-3), (32, 1e-9)])
def test_bits_change_the_precision_of_the_linear_map_alone(bits, precision):
    view, turns, true = watch(data(), **DIRECT | {"bits": bits})
    T, V = factors(turns, 4)
    assert precision / 30 < up_to_linear(T, true) < precision
    assert up_to_rotation(rotated(T, V, view.part["bandwidth"]), true) < 0.25


@pytest.mark.parametrize("orthogonal", [True, False])
def test_orthogonal_blocks_tell_whose_a_column_is(monkeypatch, orthogonal):
    """v_j^T S v_k = 0 for all pairs of one block, for one S a party.

    So the features are independent, where there is no such S.
    """
    if orthogonal:

        def drawn(*args, **_):
            return RandomFeatures(*args, orthogonal=True)

        monkeypatch.setattr("vfl_flower.numerics.kernel_model.RandomFeatures", drawn)
    _, turns, true = watch(data(), **DIRECT)
    T, V = factors(turns, 4)
    above = np.triu_indices(4)
    equations = []
    for a, b in zip(V[::2], V[1::2], strict=True):
        both = np.outer(a, b) + np.outer(b, a)
        both[np.diag_indices(4)] /= 2
        equations.append(both[above])
    _, sizes, solutions = np.linalg.svd(np.array(equations))
    if not orthogonal:
        assert sizes[-1] > 0.1 * sizes[0]  # no solution
        return
    assert sizes[-2] < 1e-3 * sizes[-3]  # two solutions: two other parties
    S = np.zeros((2, 4, 4))
    S[:, above[0], above[1]] = S[:, above[1], above[0]] = solutions[-2:]
    values, vectors = np.linalg.eig(np.linalg.solve(S[1], S[0]))
    apart = T @ vectors[:, np.argsort(values.real)].real
    blocks = [apart[:, :2], apart[:, 2:]]
    columns = true[:, :2], true[:, 2:]
    errors = np.array([[up_to_linear(b, c) for c in columns] for b in blocks])
    assert min(errors[0, 0] + errors[1, 1], errors[0, 1] + errors[1, 0]) < 1e-2
    assert errors.max() > 0.9


@pytest.mark.parametrize(("widths", "allowed"), [((1, 2), True), ((1, 1, 2), False)])
def test_one_or_two_columns_of_others(widths, allowed):
    """One: up to sign and shift. Two: up to a turn, which their marginals give away."""
    settings = {"allow_two_parties": allowed, **DIRECT}
    view, turns, true = watch(data(widths), widths, **settings)
    guess = rotated(*factors(turns, true.shape[1]), view.part["bandwidth"])
    if len(widths) > 2:
        guess, _ = ica(guess)
    assert (matched(guess, true) > 0.95).all()


@pytest.mark.parametrize("kind", ["binary", "exponential"])
def test_marginals_that_are_not_normal_give_the_columns_themselves(kind):
    """Beside it, the same of columns drawn from the same marginals."""
    widths = 3, 3, 2
    view, turns, true = watch(data(widths, n=500, kind=kind), widths, **DIRECT)
    components, _ = ica(rotated(*factors(turns, 6), view.part["bandwidth"]))
    assert (matched(components, true) > 0.95).all()
    assert (matched(np.random.default_rng(0).permuted(true, axis=0), true) < 0.3).all()


@pytest.mark.parametrize(
    ("kernel", "shown"), [("laplacian", True), ("gaussian", False)]
)
def test_cauchy_features_show_the_columns_whatever_their_marginals(kernel, shown):
    """Normal columns: only the features could tell one direction from another.

    With half of the features the Laplacian's tell them in 7 of 8 draws, with these in
    all 8.
    """
    _, turns, true = watch(data(n=400, kind="normal"), kernel=kernel, features=4096)
    T, V = factors(turns, 4, share=0.6 if shown else 1.0)
    assert up_to_linear(T, true) < 1e-3
    assert (matched(T @ ica(np.vstack([V, -V]))[1], true).min() > 0.95) == shown


def test_kernel_values_are_estimated_as_by_so_many_features(default):
    """Root mean squared error at most that of M independent features, and 20 %."""
    view, turns, true = default
    squared = ((true[:, None] - true[None]) ** 2).sum(axis=2)
    kernel = np.exp(-squared / (2 * view.part["bandwidth"] ** 2))
    pairs = np.triu_indices(len(true), 1)
    estimates, kernel = kernel_values(turns)[pairs], kernel[pairs]
    variance = ((1 + kernel**4) / 2 - kernel**2) / turns.shape[1]
    assert np.mean((estimates - kernel) ** 2) < 1.44 * np.mean(variance)
    assert np.corrcoef(estimates, kernel)[0, 1] > 0.95


def test_label_holder_gets_distances_of_pairs_exactly(default):
    """Of 1,000 pairs over the others' columns, for the median."""
    view, (X, _) = default[0], data()
    distances = join_limbs(view.value("distances").reshape(5, -1))
    asked = next(m for m in view.messages if "holder" in m)
    rows = asked.get("rows", np.arange(300)).astype(int)
    rng = np.random.default_rng([view.frame["seed"], 1000])
    i, j = rows[draw_pairs(len(rows), 1000, rng)]
    others = distances - ((X[i, 4:] - X[j, 4:]) ** 2).sum(axis=1)
    true = ((X[i, :4] - X[j, :4]) ** 2).sum(axis=1)
    np.testing.assert_allclose(others, true, rtol=1e-6, atol=1e-6)


def test_of_two_label_holders_one_learns_the_partial_scores_of_the_other():
    """f(x) less its own part is the other's: of three holders it would be a sum."""
    X, y = data()
    grid = Recorder(by_columns(X, y, holders=(0, 2)))
    made(DOUBLY | {"bits": 32, "iterations": 8}, test_fraction=0.2).start(grid)
    view, parts = View(grid, 0), parts_of(grid)
    asked = [m for m in view.messages if "size" in m and "learn" not in m]
    at = next(m for m in asked if "at.rows" in m)
    got = next(m for m in asked if "done.rows" in m)
    rows, M = got["done.rows"].astype(int), view.part["n_features"]
    assert np.array_equal(rows, at["at.rows"])
    angles = at["at.angles"].reshape(len(rows), -1)
    own = features(angles) @ view.part["coef"] + view.part["intercept"]
    learned = got["done.scores"].reshape(own.shape) - own
    blocks = np.split(X[rows], 3, axis=1)
    turns = sum(partial_angles(p, b, M, 64) for p, b in zip(parts, blocks, strict=True))
    theirs = features(turns[:, owned(parts[2], M, 2)] % 1.0) @ parts[2]["coef"]
    theirs = theirs + parts[2]["intercept"]
    assert np.ptp(theirs) > 0.1
    np.testing.assert_allclose(learned, theirs, atol=1e-5)


def test_other_parties_get_nothing_to_open():
    grid = Recorder(by_columns(*data()))
    FDSKLDirect(test_fraction=0.2, **DIRECT).start(grid)
    opened = {k for j in (0, 1) for m in View(grid, j).messages for k in m}
    assert not {k.partition(".")[0] for k in opened} & {"at", "done"}
    assert not opened & {"angles", "scores", "distances", "angles_0"}


# -- (c) masks ------------------------------------------------------------------------

STAR = {"features": 32, "test_fraction": 0.2}
STEPS = {"strategy": FDSKL, "rows": 40, "features": 40}
PUBLISHED = {**STEPS, "iterations": 4, "step": 0.5}
RUNS = {
    "star": STAR,
    "ring": {**STAR, "topology": "ring"},
    "tree": {**STAR, "topology": "tree", "bits": 32},
    "paper": {**STAR, "topology": "tree", "angle_masking": "paper"},
    "doubly": {**PUBLISHED, "test_fraction": 0.2, "bits": 32},
    "doubly, ring": {**PUBLISHED, "test_fraction": 0.2, "topology": "ring"},
    "implicit": {**STEPS, "test_fraction": 0.2, "regularization": 0.1},
}


@pytest.mark.parametrize("run", ["star", "doubly", "ring"])
def test_all_that_the_server_gets_into_sums_is_uniform(run):
    """Of equal rows; `check_masks` of :mod:`vfl_flower.testing` takes others.

    Below 75 chi-square tests in all, each at 1e-9: false alarms below 1e-7. Sums that
    only one party can open, also those that the server passes on; encrypted messages by
    their bytes.
    """
    X, y = data(n=2000)
    # Where each knows half of the labels, their scores are summed.
    holders = (0, 2) if run == "doubly" else (2,)
    grid = Recorder(by_columns(np.ones_like(X), y, holders=holders))
    made(RUNS[run], bandwidth=1.0).start(grid)
    streams, frames = defaultdict(list), {}
    for e in grid.transcript:
        if e.up:
            for name in (n for n in e.values if f"sum.{n}" in frames[e.party]):
                relayed = f"relay.{name}" in frames[e.party]
                streams[name, e.party, relayed].append(e.values[name].ravel())
            continue
        frames[e.party] = e.frame
        for key in (k for k in e.frame if k.startswith("sealed.")):
            name = key.removeprefix("sealed.")
            parts = [v for k, v in e.values.items() if k.rpartition(".")[0] == name]
            field = name.rpartition(".")[2]  # of a structure
            streams[field, "server"] += [part.ravel() for part in parts]
    wanted = {"angles_0", "scores"} if run == "doubly" else set()
    assert wanted | {"angles_2"} <= {name for name, *_ in streams}
    if run == "doubly":
        assert {("angles", "server"), ("scores", "server")} <= streams.keys()
    assert len(streams) < 25
    for key, arrays in streams.items():
        whole = np.concatenate(arrays)
        assert is_uniform(whole.view(np.uint8)), key
        if whole.size > 2560 and not key[-1]:
            assert is_uniform(whole), key  # the top bytes


def test_a_masked_message_is_uniform_where_a_bare_one_is_not():
    """As a control: the same angles without masks, of equal rows, are no noise."""
    X, y = data()
    table, settings = (np.ones_like(X), y), {"masking": "plain", "bandwidth": 1.0}
    turns = watch(table, **settings, **real(DIRECT))[0].value("angles_0")
    assert not is_uniform(np.floor(turns % 1 * 2**16).astype(np.uint16))


class Keys:
    """Every key that is derived, every stream, and every message that is sealed."""

    def __init__(self, monkeypatch):
        self.contexts = defaultdict(set)  # key -> secret and context
        self.streams = Counter()  # key and nonce
        self.sealed = defaultdict(list)  # key and nonce -> messages
        self.masked = defaultdict(set)  # party and context -> values
        derive, chacha, aead = masks.derive_key, masks.ChaCha20, relay.ChaCha20Poly1305
        mask, keys = sums.masked, self

        def derive_key(secret, parts):
            key = derive(secret, parts)
            keys.contexts[key].add((secret, tuple(parts)))
            return key

        def stream(key, nonce):
            keys.streams[key, nonce] += 1
            return chacha(key, nonce)

        class Sealing:
            def __init__(self, key):
                self.key, self.cipher = key, aead(key)

            def encrypt(self, nonce, data, extra):
                keys.sealed[self.key, nonce].append(hashlib.sha256(data).digest())
                return self.cipher.encrypt(nonce, data, extra)

            def decrypt(self, nonce, data, extra):
                return self.cipher.decrypt(nonce, data, extra)

        def masked(values, group, own, *context):
            about = own._index, own._run_id, *context
            content = np.ascontiguousarray(values).tobytes()
            keys.masked[about].add(hashlib.sha256(content).digest())
            return mask(values, group, own, *context)

        monkeypatch.setattr(masks, "derive_key", derive_key)
        monkeypatch.setattr(relay, "derive_key", derive_key)
        monkeypatch.setattr(masks, "ChaCha20", stream)
        monkeypatch.setattr(relay, "ChaCha20Poly1305", Sealing)
        monkeypatch.setattr(sums, "masked", masked)

    def check(self):
        """No key has two uses, no use two contents, nor a context two values."""
        for contexts in self.contexts.values():
            assert len(contexts) == 1
        actual = [context for (context,) in self.contexts.values()]
        assert len(set(actual)) == len(actual)
        # A key is of a stream or of a message, by the label it is derived with.
        assert {k for k, _ in self.streams}.isdisjoint(k for k, _ in self.sealed)
        for messages in self.sealed.values():
            assert len(set(messages)) == 1
        for values in self.masked.values():
            assert len(values) == 1

    def uses_of_masks(self):
        """Return how often streams are made, but for those of secret draws."""
        drawn = {
            key
            for key, contexts in self.contexts.items()
            if any(parts[0] == SECRET_DRAW for _, parts in contexts)
        }
        return {n for (key, _), n in self.streams.items() if key not in drawn}


@pytest.fixture
def keys(monkeypatch):
    return Keys(monkeypatch)


@pytest.mark.parametrize(
    "run", ["star", "ring", "tree", "paper", "doubly, ring", "implicit"]
)
def test_no_key_is_used_twice(keys, run):
    """In one run and between two of one seed: a stream has its two ends."""
    for _ in range(2):
        made(RUNS[run], seed=5).start(Recorder(by_columns(*data(n=60))))
    keys.check()
    # A mask is put on at both ends of a pair; a pad is put on and taken off again.
    assert keys.uses_of_masks() == {2}
    assert all(len(messages) == 1 for messages in keys.sealed.values())
    assert bool(keys.sealed) == ("topology" in RUNS[run])


def test_predictions_share_no_key_with_training(keys, tmp_path):
    X, y = data(n=60)
    trained = by_columns(X, y, folder=tmp_path)
    new = by_columns(X[:20], folder=tmp_path)
    model = FDSKLDirect(**STAR).start(Recorder(trained)).model.id
    for topology in ("star", "tree"):
        FDSKLPrediction(model, topology=topology).start(Recorder(new))
    keys.check()
    assert keys.uses_of_masks() == {2}


@pytest.mark.parametrize("kind", ["damage reply array", "duplicate"])
@pytest.mark.parametrize("run", ["star", "doubly, ring"])
def test_a_retry_hides_the_same_under_the_same_key(keys, clock, run, kind):
    """Each step of each party fails once: the same keys, for the same content."""
    grid = FaultyGrid(by_columns(*data(n=60)), [Fault(kind)], clock)
    made(RUNS[run]).start(grid)
    assert grid.struck >= 3 * 4
    keys.check()
    for one, other in grid.twins:
        arrays = [unbundle(m.content)["arrays"] for m in (one, other)]
        for name in arrays[0]:
            assert arrays[0][name].data == arrays[1][name].data


# -- (d) the server's view ------------------------------------------------------------


@pytest.mark.parametrize("run", ["star", "ring", "tree", "paper", "doubly", "implicit"])
def test_messages_are_of_one_size_whatever_the_data(run, monkeypatch):
    """Other columns, other labels: the same messages, settings and bytes of each."""
    monkeypatch.setattr("secrets.randbits", lambda bits: 2 ** (bits - 1) + 12345)
    (X, y), (other, labels) = data(n=60), data(n=60, seed=1)

    def shapes(parties):
        made(RUNS[run]).start(grid := Recorder(parties))
        for e in grid.transcript:
            kinds = sorted((k, type(v), np.shape(v)) for k, v in e.values.items())
            yield e.action, e.party, e.up, e.size, sorted(e.frame), kinds

    others = by_columns(other**3 + 5, ~labels)
    assert list(shapes(by_columns(X, y))) == list(shapes(others))


NUMBERS = ["bandwidth", "regularization", "cv_score", "converged", "test_loss", "scale"]
"""Real numbers among the settings that parties send."""


@pytest.mark.parametrize("run", ["star", "tree", "doubly", "implicit"])
def test_no_label_residual_coefficient_or_angle_is_in_a_message(run):
    """Nor a score, a frequency or a seed, as the numbers they are.

    Patterns of 8 bytes or more: fewer than 10^4 in fewer than 10^6 bytes, most of them
    noise, so that false alarms are below 1e-9.
    """
    X, _ = data(n=60)
    y = np.sin(np.arange(60.0)) * 7 + X[:, 0]
    grid = Recorder(by_columns(X, y))
    given = {**RUNS[run], "loss": "square", "target": "continuous"}
    made(given).start(grid)
    parts = parts_of(grid)
    M = parts[0]["n_features"]
    bits = given.get("bits", 16)
    blocks = np.split(X, 3, axis=1)
    own = [partial_angles(p, b, M, bits) for p, b in zip(parts, blocks, strict=True)]
    turns = sum(partial_angles(p, b, M, 64) for p, b in zip(parts, blocks, strict=True))
    coef, intercept = parts[HOLDER]["coef"], parts[HOLDER]["intercept"]
    scores = (np.sqrt(2) * np.cos(2 * np.pi * turns)) @ coef + intercept
    real = np.concatenate(
        [X.ravel(), y, (y - scores[:, 0]), scores.ravel(), coef.ravel()]
        + [own_features(p).weights(0, M)[k].ravel() for p in parts for k in (0, 1)]
        + [intercept[intercept != 0]]
    )
    single = real.astype("<f4")
    wanted = patterns(real)
    wanted |= {single[k : k + 3].tobytes() for k in range(len(real) - 2)}
    for angles in [*own, sum(own), *itertools.starmap(np.add, [own[:2], own[1:]])]:
        wanted |= {row[k : k + 8].tobytes() for row in angles for k in (0, 8)}
    wanted |= {bytes.fromhex(p["seed"]) for p in parts}
    wanted |= {p["seed"].encode() for p in parts}
    assert not actual(wanted, grid.transcript)
    # The numbers among the settings, each for what it is.
    model = np.sqrt(M) * coef, coef, intercept, scores, y, y - scores[:, 0]
    secret = np.abs(np.concatenate([np.ravel(v) for v in model]))
    for e in grid.transcript:
        for name, value in e.values.items() if e.up else ():
            if isinstance(value, float):
                assert name in NUMBERS
                assert np.abs(secret - abs(value)).min() > 1e-13
                assert name != "converged" or value in (0.0, 1.0)
                assert name != "regularization" or value in GRID
                assert name != "scale" or np.log2(value) % 1 == 0


def test_the_search_sees_what_is_not_hidden():
    """With masking="plain" it finds angles and scores, or it would show nothing."""
    X, y = data(n=60)
    grid = Recorder(by_columns(X, y))
    FDSKLDirect(masking="plain", **{**STAR, "test_fraction": 0.0}).start(grid)
    parts, blocks = parts_of(grid), np.split(X, 3, axis=1)
    own = partial_angles(parts[0], blocks[0], 32, 64)
    assert actual(patterns(own), grid.transcript)
