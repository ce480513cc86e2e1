"""Models: predict, and the round trip through a file and through Flower."""

import os
import re
import stat
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from flwr.app import ArrayRecord, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto

from vfl_flower import load_model
from vfl_flower.models.base import RemovedModel, UsedModel
from vfl_flower.models.coresets import KMeansModel, LinearModel
from vfl_flower.models.fdskl import KernelModel
from vfl_flower.models.kernel_kmeans import KernelKMeansModel
from vfl_flower.models.mufc import MUFCModel
from vfl_flower.numerics.kernel_model import partial_angles
from vfl_flower.numerics.random_features import features

LINEAR = LinearModel([np.array([1.0, -2.0]), np.array([0.5])], 3.0)
CLUSTERS = KMeansModel([np.array([[0.0], [x], [9.0]]) for x in (1, 5)])
_common = {"kernel": "gaussian", "bandwidth": 1.5, "n_features": 8, "n_parties": 2}
_common |= {"holders": [1], "block": 8}
PARTS = [
    {**_common, "seed": "a1", "n_columns": 2, "index": 0, "columns": ["u", "v"]},
    {
        **_common,
        **{"seed": "ffffffffffffffffffffffff", "n_columns": 1, "index": 1},
        **{"columns": [], "target": "binary", "classes": np.array([-3.0, 5.0])},
        **{"coef": np.arange(-4.0, 4.0)[:, None], "intercept": np.array([0.5])},
    },
]
KERNEL = KernelModel("0123456789abcdef", "gaussian", 1.5, 8, [2, 1], True, PARTS)
MODELS = [LINEAR, CLUSTERS, KERNEL]
_embedding = {"kernel": "gaussian", "gamma": 0.5}
_embedding |= {"D": 4, "D_1": 6, "seed": "0123456789abcdef0123456789abcdef"}
_embedding |= {"P": np.linspace(-1, 1, 20).reshape(10, 2)}
_embedding |= {"centers": np.array([[0.0, 0.5], [-1.0, 0.0]])}
KERNEL_CLUSTERS = KernelKMeansModel(
    *("fedcba9876543210", "gaussian", 0.5, 3, np.array([7.0, 2.0])),
    *(_embedding["centers"], 1.25, True),
    [
        _embedding | {"labels": np.array([1, 0, 1], dtype=np.int32)},
        _embedding | {"labels": np.array([0], dtype=np.int32)},
    ],
)
KERNEL_CLUSTERS_APART = KernelKMeansModel(
    *("fedcba9876543210", "laplacian", 0.5, 3, np.zeros(0)),
    *(np.zeros((0, 0)), float("nan")),
)
FORGETFUL = MUFCModel(
    *("00112233445566aa", 3, np.array([[0.0, 0.5], [-1.0, 0.0], [3.0, 3.0]])),
    *(2.5, np.array([4, 0, 7]), True),
)
UNKEPT = MUFCModel("00112233445566aa", 1, np.zeros((1, 2)))
OF_LATER_TASKS = [UsedModel("00112233445566aa"), RemovedModel("00112233445566aa")]
SAVED = [*MODELS, KERNEL_CLUSTERS, FORGETFUL, KERNEL_CLUSTERS_APART, UNKEPT]
SAVED += OF_LATER_TASKS
"""Also those that do not predict from a matrix a party."""


def assert_same(model, expected):
    assert type(model) is type(expected)
    actual, wanted = model.arrays(), expected.arrays()
    assert list(actual) == list(wanted)
    for name, array in actual.items():
        assert array.dtype == wanted[name].dtype
        np.testing.assert_array_equal(array, wanted[name])


def test_linear_prediction():
    """Row (1, 1 | 4): 1 - 2 + 2 + 3 = 4; row (2, 0 | 0): 2 + 3 = 5."""
    actual = LINEAR.predict([np.array([[1, 1], [2, 0]]), [[4.0], [0.0]]])
    assert actual.tolist() == [4.0, 5.0]
    assert actual.dtype == np.float64


def test_nearest_centre():
    """In the columns of one party alone, rows 0 and 1 would have other centres."""
    actual = CLUSTERS.predict([[[1.0], [0.0], [8.0]], [[0.0], [5.0], [9.0]]])
    assert actual.tolist() == [0, 1, 2]


def blocks(model):
    if isinstance(model, KernelModel):
        return [np.zeros((4, width)) for width in model.widths]
    arrays = model.coef_ if isinstance(model, LinearModel) else model.cluster_centers_
    return [np.zeros((4, array.shape[-1])) for array in arrays]


def test_kernel_prediction():
    """f(x) = sum_m coef_m phi_m(x) + intercept, of angles that parties add up."""
    rng = np.random.default_rng(3)
    X = [rng.normal(size=(60, 2)), rng.normal(size=(60, 1))]
    pairs = zip(PARTS, X, strict=True)
    turns = sum(partial_angles(part, block, 8, 64) for part, block in pairs)
    scores = features(turns % 1.0) @ PARTS[1]["coef"] + 0.5
    np.testing.assert_allclose(KERNEL.decision_function(X), scores, rtol=1e-12)
    labels = np.where(scores[:, 0] > 0, 5.0, -3.0)
    assert set(labels) == {5.0, -3.0}
    np.testing.assert_array_equal(KERNEL.predict(X), labels)


def test_kernel_probabilities():
    """Of two classes the logistic function of the score."""
    X = [np.ones((3, 2)), np.arange(3.0)[:, None]]
    scores = KERNEL.decision_function(X)[:, 0]
    with pytest.raises(ValueError, match=r"'binary' and loss None$"):
        KERNEL.predict_proba(X)

    def model(**more):
        parts = [PARTS[0], PARTS[1] | more]
        return KernelModel("0123456789abcdef", "gaussian", 1.5, 8, [2, 1], parts=parts)

    expected = 1 / (1 + np.exp(-scores))
    chances = model(loss="logistic").predict_proba(X)
    np.testing.assert_allclose(chances, np.stack([1 - expected, expected], axis=1))
    with pytest.raises(ValueError, match=r"need a classifier trained .* 'continuous'"):
        model(target="continuous", loss="logistic").predict_proba(X)


@pytest.mark.parametrize(
    ("kept", "rule"),
    [
        (True, "are at the parties: to predict, run task 'predict' with model '0"),
        (False, "are lost: not all parties had a state-dir"),
    ],
)
def test_kernel_model_whose_parts_are_elsewhere(kept, rule, tmp_path):
    """Where a party has no folder for it, no later run can predict."""
    apart = KernelModel("0123456789abcdef", "gaussian", 1.5, 8, [2, 1], kept)
    for model in (apart, KernelModel.load(apart.save(tmp_path / "m.npz"))):
        assert_same(model, apart)
        assert model.parts is None
        for method in (model.predict, model.decision_function, model.predict_proba):
            with pytest.raises(ValueError, match=f"model 0123456789abcdef {rule}"):
                method(blocks(model))


@pytest.mark.parametrize("model", [KERNEL, KERNEL_CLUSTERS])
def test_parts_come_back_as_they_were(model, tmp_path):
    """Not as arrays: what a party keeps is settings and a few arrays."""
    for again in (
        type(model).load(model.save(tmp_path / "m.npz")),
        type(model).from_arrays(model.to_record()),
    ):
        np.testing.assert_equal(again.parts, model.parts)
        for part, before in zip(again.parts, model.parts, strict=True):
            types = {name: type(value) for name, value in before.items()}
            assert {name: type(value) for name, value in part.items()} == types


def test_parts_are_not_printed():
    assert "a1" not in repr(KERNEL)
    assert KERNEL_CLUSTERS.parts[0]["seed"] not in repr(KERNEL_CLUSTERS)


# -- clusters of a kernel --------------------------------------------------------------


def test_clusters_of_a_kernel_after_they_were_saved(tmp_path):
    again = KernelKMeansModel.load(KERNEL_CLUSTERS.save(tmp_path / "m.npz"))
    assert again.note == KERNEL_CLUSTERS.note
    assert [labels.tolist() for labels in again.labels_] == [[1, 0, 1], [0]]
    X = np.random.default_rng(0).normal(size=(30, 3))
    H = again.transform(X)
    np.testing.assert_array_equal(H, KERNEL_CLUSTERS.transform(X))
    distances = ((H[:, None] - again.cluster_centers_) ** 2).sum(axis=2)
    nearest = distances.argmin(axis=1)
    np.testing.assert_array_equal(again.predict(X), nearest)
    assert set(nearest) == {0, 1}
    assert again.predict(X[:0]).shape == (0,)


def test_clusters_of_a_kernel_that_there_is_no_more(tmp_path):
    parts = [part | {"kernel": "polynomial"} for part in KERNEL_CLUSTERS.parts]
    model = replace(KERNEL_CLUSTERS, kernel="polynomial", parts=parts)
    again = load_model(model.save(tmp_path / "m.npz"))
    for ask in (again.predict, again.transform):
        with pytest.raises(ValueError, match=r"must be one of .*, got 'polynomial'$"):
            ask(np.zeros((2, 3)))


def test_clusters_of_a_kernel_whose_parts_lie_at_the_parties(tmp_path):
    apart = KERNEL_CLUSTERS_APART
    sentence = (
        "^the labels and local models of model fedcba9876543210 are at the parties: "
        r"to label new rows, run vfl-flower label at a party$"
    )
    for model in (apart, KernelKMeansModel.load(apart.save(tmp_path / "m.npz"))):
        assert model.parts is None
        assert not model.kept
        with pytest.raises(ValueError, match=sentence):
            _ = model.labels_
        for ask in (model.predict, model.transform):
            with pytest.raises(ValueError, match=sentence):
                ask(np.zeros((2, 3)))


# -- clusters that can forget ----------------------------------------------------------


def test_clusters_that_can_forget_keep_the_types_of_their_settings(tmp_path):
    again = MUFCModel.load(FORGETFUL.save(tmp_path / "m.npz"))
    for name in ("id", "version", "inertia_", "kept", "note"):
        actual, expected = getattr(again, name), getattr(FORGETFUL, name)
        assert actual == expected
        assert type(actual) is type(expected)
    assert again.labels_ is None


def test_labels_of_clients_are_in_no_file(tmp_path):
    """Nor in what is printed."""
    labels = [np.array([1, 0]), np.array([2])]
    model = MUFCModel("00112233445566aa", 1, np.eye(3), labels_=labels)
    assert MUFCModel.load(model.save(tmp_path / "m.npz")).labels_ is None
    assert not any("label" in name for name in model.arrays())
    assert "labels_=<list of 2>" in repr(model)


def test_nearest_centre_of_rows_of_all_columns():
    """Of (-1, 0): 1.25, 0 and 25; of (2, 2): 6.25, 13 and 2."""
    assert FORGETFUL.predict([[-1.0, 0.0], [2, 2], [0, 0.4]]).tolist() == [1, 2, 0]
    assert FORGETFUL.predict(np.zeros((0, 2))).shape == (0,)


@pytest.mark.parametrize("shape", [(4, 3), (4, 1), (2,), (1, 4, 2), (0, 1)])
def test_rows_of_other_columns(shape):
    sentence = f"X must be a matrix with 2 columns, got shape {shape}"
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        FORGETFUL.predict(np.zeros(shape))


@pytest.mark.parametrize("value", [np.nan, np.inf, "a", 1j])
def test_rows_that_are_no_finite_numbers(value):
    with pytest.raises(ValueError, match="X must hold finite numbers"):
        FORGETFUL.predict(np.array([[value, value], [0.0, 0.0]]))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "spoil",
    [
        lambda b: b[:1],
        lambda b: [b[0][:, :0], b[1]],
        lambda b: [b[0], np.hstack([b[1], b[1]])],
        lambda b: [b[0], b[1][:3]],
        lambda b: [b[0], b[1][:, 0]],
        lambda b: [b[0], 1.0],
    ],
)
def test_blocks_that_are_not_those_of_the_parties(model, spoil):
    actual = spoil(blocks(model))
    with pytest.raises(ValueError, match="predict needs one matrix for each party"):
        model.predict(actual)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("value", [np.nan, -np.inf, "a", None])
def test_values_that_are_no_numbers(model, value):
    actual = blocks(model)
    actual[1] = np.array([[value] * actual[1].shape[1]] * len(actual[1]))
    rule = r"matrix 1 .* real numbers|numbers, but matrix 1 "
    with pytest.raises(ValueError, match=rule):
        model.predict(actual)


@pytest.mark.parametrize("model", SAVED)
@pytest.mark.parametrize(
    ("name", "file"),
    [("model.npz", "model.npz"), ("model", "model.npz"), ("model.bin", "model.bin")],
)
def test_saved_and_loaded(model, name, file, tmp_path):
    path = model.save(tmp_path / name)
    assert path == tmp_path / file
    assert os.listdir(tmp_path) == [file]
    for loaded in (type(model).load(path), load_model(str(path))):
        assert_same(loaded, model)


def test_the_file_needs_no_pickle(tmp_path):
    with np.load(CLUSTERS.save(tmp_path / "m.npz"), allow_pickle=False) as file:
        assert sorted(file.files) == ["centers_0", "centers_1", "format", "kind"]
        assert str(file["kind"]) == "k-means"


@pytest.mark.parametrize(("model", "other"), list(permutations(SAVED[:5], 2)))
def test_loaded_as_another_kind(model, other, tmp_path):
    sentence = f"must hold a '{other.kind}' model, got '{model.kind}'"
    with pytest.raises(ValueError, match=sentence):
        type(other).load(model.save(tmp_path / "m.npz"))


def test_loaded_from_a_later_format(tmp_path):
    path = tmp_path / "m.npz"
    np.savez(path, kind="linear", format=2, **LINEAR.arrays())
    with pytest.raises(ValueError, match="format 1, got format 2"):
        LinearModel.load(path)


def test_loaded_of_a_kind_that_is_not_installed(tmp_path):
    np.savez(tmp_path / "m.npz", kind="tree", format=1)
    with pytest.raises(ValueError, match="'tree' model, whose package is not"):
        load_model(tmp_path / "m.npz")


@pytest.mark.parametrize("model", SAVED)
def test_a_save_that_fails_leaves_the_file_of_before(model, tmp_path, monkeypatch):
    path = model.save(tmp_path / "m.npz")

    def full(file, **arrays):
        file.write(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match="No space"):
        MODELS[0].save(path)
    monkeypatch.undo()
    assert_same(type(model).load(path), model)


def test_only_its_owner_may_read_a_file_with_the_secrets_of_parties(tmp_path):
    before = os.umask(0)
    try:
        for model in (KERNEL, KERNEL_CLUSTERS):
            saved = model.save(tmp_path / "m.npz")
            assert stat.S_IMODE(saved.stat().st_mode) == 0o600
        for model in (LINEAR, *OF_LATER_TASKS):
            plain = model.save(tmp_path / "l.npz")
            assert stat.S_IMODE(plain.stat().st_mode) == 0o666
    finally:
        os.umask(before)


@pytest.mark.parametrize("model", OF_LATER_TASKS)
def test_a_model_that_was_used_or_removed_lends_no_id(model, tmp_path):
    """Commands would take the file of such a run for a version of the model."""
    loaded = type(model).load(model.save(tmp_path / "m.npz"))
    assert loaded.id is None
    assert loaded.model_id == "00112233445566aa"
    assert loaded.note == model.note
    assert "00112233445566aa" in model.note


@pytest.mark.parametrize("model", SAVED)
def test_round_trip_through_flower(model):
    record = model.to_record()
    assert isinstance(record, ArrayRecord)
    proto = recorddict_to_proto(RecordDict({"arrays": record}))
    arrived = recorddict_from_proto(proto)["arrays"]
    assert_same(type(model).from_arrays(arrived), model)
    assert_same(type(model).from_arrays(model.arrays()), model)


def test_more_than_ten_parties_stay_in_order(tmp_path):
    """Not coef_0, coef_1, coef_10, coef_2 ..."""
    parts = [{"seed": f"{j:x}", "index": j} for j in range(12)]
    for model in (
        LinearModel([np.array([float(j)]) for j in range(12)], 1.0),
        KernelModel("ab", "gaussian", 1.0, 4, [1] * 12, parts=parts),
    ):
        assert_same(type(model).load(model.save(tmp_path / "m.npz")), model)
        assert_same(type(model).from_arrays(model.to_record()), model)


@pytest.mark.parametrize("name", ["text.npz", "array.npy", "other.npz"])
def test_a_file_that_is_no_model(tmp_path, name):
    """No advice to load it unsafely, and no stack."""
    (tmp_path / "text.npz").write_text("a,b")
    np.save(tmp_path / "array.npy", np.zeros(3))
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    with pytest.raises(ValueError, match=r"not a saved model|a model in format"):
        LinearModel.load(tmp_path / name)


@pytest.mark.parametrize("blocks", [None, np.ones((3, 2)), 5])
def test_blocks_that_are_no_list(blocks):
    with pytest.raises(ValueError, match="predict needs a list of matrices"):
        LINEAR.predict(blocks)


def test_a_file_that_lacks_an_array_or_holds_nan(tmp_path):
    with np.load(LINEAR.save(tmp_path / "model.npz")) as file:
        arrays = dict(file)
    changed = {
        "nan": arrays | {"coef_0": np.array([np.nan, 1.0])},
        "without an intercept": {k: v for k, v in arrays.items() if k != "intercept"},
        "without a block": {k: v for k, v in arrays.items() if k != "coef_0"},
    }
    for name, kept in changed.items():
        np.savez(tmp_path / f"{name}.npz", **kept)
        with pytest.raises(ValueError, match="the file is damaged"):
            load_model(tmp_path / f"{name}.npz")


def test_a_model_is_not_saved_over_a_folder(tmp_path):
    for path in (tmp_path, tmp_path / "none" / "model.npz"):
        with pytest.raises(ValueError, match="path must be a file in an existing"):
            LINEAR.save(path)


def test_a_compressed_file_is_not_read(tmp_path):
    """A file of 0.5 MB became 1.2 GB."""
    with np.load(LINEAR.save(tmp_path / "model.npz")) as file:
        np.savez_compressed(tmp_path / "small.npz", **dict(file))
    with pytest.raises(ValueError, match="damaged, or is not a saved model"):
        load_model(tmp_path / "small.npz")
