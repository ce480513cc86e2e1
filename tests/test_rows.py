"""Rows by blocks, by numbers and in sums: each kind against NumPy on the same array."""

import itertools
import operator
from collections.abc import Callable

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vfl_flower as vf
from vfl_flower.data.rows import ArrowRows, arrow_rows
from vfl_flower.numerics.blocks import RowBlocks
from vfl_flower.party.party import PartyError
from vfl_flower.rows import (
    WINDOW_BYTES,
    ArrayRows,
    Rows,
    add_each,
    as_rows,
    number_array,
)


class ByNumbers(Rows):
    def __init__(self, X):
        self._X, self.shape = X, X.shape
        self.times = 0

    def take(self, rows):
        assert rows.dtype == np.int64
        self.times += 1
        X = self._X[rows]
        X.flags.writeable = False
        return X


def table_of(X) -> pa.Table:
    return pa.table({f"x{j}": column for j, column in enumerate(X.T)})


def parquet(X, folder, name="x.parquet", group=37) -> ArrowRows:
    pyarrow.parquet.write_table(table_of(X), folder / name, row_group_size=group)
    return arrow_rows(folder / name)


def ipc(X, folder, compression=None) -> ArrowRows:
    table, path = table_of(X), folder / f"x{compression}.arrow"
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(path, table.schema, options=options) as file:
        file.write_table(table, max_chunksize=23)
    return arrow_rows(path)


def memory_map(X, folder) -> ArrayRows:
    np.save(folder / "x.npy", X)
    return ArrayRows(np.load(folder / "x.npy", mmap_mode="r"))


def several_files(X, folder) -> ArrowRows:
    (folder / "x.parquet").mkdir()
    for k, part in enumerate(np.array_split(X, 3)):
        parquet(part, folder / "x.parquet", f"{k}.parquet", 11)
    return arrow_rows(folder / "x.parquet")


def batches(X, folder) -> ArrowRows:
    def piece(part) -> Callable:
        record_batches = table_of(part).to_batches(max_chunksize=5)
        return lambda: iter(record_batches)

    parts = [*np.array_split(X, 2), X[:0]]  # the last piece has no row
    return ArrowRows([piece(part) for part in parts], [f"x{j}" for j in range(4)])


KINDS: dict[str, Callable[..., Rows]] = {
    "array": lambda X, folder: ArrayRows(X),
    "Fortran": lambda X, folder: ArrayRows(np.asfortranarray(X)),
    "memory map": memory_map,
    "by numbers": lambda X, folder: ByNumbers(X),
    "batches": batches,
    "Parquet": parquet,
    "several Parquet files": several_files,
    "Arrow": ipc,
    "compressed Arrow": lambda X, folder: ipc(X, folder, "lz4"),
}

N, D = 100, 4
X = np.random.default_rng(0).standard_normal((N, D))


@pytest.fixture(scope="module", params=KINDS)
def rows(request, tmp_path_factory) -> Rows:
    return KINDS[request.param](X, tmp_path_factory.mktemp("rows"))


CHOICES = st.none() | st.lists(st.integers(0, N - 1), max_size=2 * N).map(
    lambda numbers: np.array(numbers, dtype=np.int64)
)


def chosen(numbers):
    return X if numbers is None else X[numbers]


@given(size=st.integers(0, 2 * N), numbers=CHOICES)
@settings(max_examples=30)
def test_blocks_are_the_rows_in_order(rows, size, numbers):
    expected = chosen(numbers)
    blocks = list(rows.blocks(size, numbers))
    assert np.array_equal(np.concatenate([expected[:0], *blocks]), expected)
    lengths = [len(block) for block in blocks]
    assert set(lengths[:-1]) <= {size or rows.block_rows}
    assert all(0 < length <= (size or rows.block_rows) for length in lengths)
    for block in blocks:
        assert block.dtype == np.float64
        assert block.flags.c_contiguous


@given(numbers=CHOICES.filter(lambda numbers: numbers is not None))
@settings(max_examples=30)
def test_take_gives_rows_in_any_order(rows, numbers):
    taken = rows.take(numbers)
    assert np.array_equal(taken, X[numbers])
    assert taken.dtype == np.float64
    assert taken.flags.c_contiguous


@given(size=st.integers(0, 2 * N), numbers=CHOICES)
@settings(max_examples=30)
def test_map_reduce_has_the_bits_of_numpy(rows, size, numbers):
    """The sums in the order of the blocks, and the places of each block."""
    expected, size_ = chosen(numbers), size or rows.block_rows
    weights = np.linspace(1, 2, len(expected))
    total = np.zeros((D, D))
    for start in range(0, len(expected), size_):
        part = slice(start, start + size_)
        total = total + (weights[part, None] * expected[part]).T @ expected[part]
    actual = rows.map_reduce(
        lambda part, block: ((weights[part, None] * block).T @ block, len(block)),
        add_each,
        (np.zeros((D, D)), 0),
        size,
        numbers,
    )
    assert np.array_equal(actual[0], total)
    assert actual[1] == len(expected)
    order = rows.map_reduce(lambda _, b: [*b[:, 0]], operator.add, [], size, numbers)
    assert order == expected[:, 0].tolist()


def test_per_row_puts_blocks_together(rows):
    assert np.array_equal(rows.per_row(lambda X: X[:, ::-1] * 2), X[:, ::-1] * 2)
    none = RowBlocks(rows, rows=np.arange(0))
    assert none.per_row(lambda X: X[:, 0] > 0).dtype == bool
    assert none.per_row(lambda X: X[:, :2]).shape == (0, 2)


@given(numbers=CHOICES, size=st.integers(1, 10_000))
@settings(max_examples=30)
def test_chosen_rows_with_more_columns_are_rows_too(rows, numbers, size):
    y = np.arange(N) / 7
    blocks = RowBlocks(rows, 1.0, y, rows=numbers, block_bytes=size)
    whole = np.column_stack([X, np.ones(N), y])
    expected = whole if numbers is None else whole[numbers]
    assert blocks.shape == expected.shape
    assert np.array_equal(np.concatenate([expected[:0], *blocks]), expected)
    assert blocks.per_row(lambda b: b[:, -1]).tolist() == expected[:, -1].tolist()
    some = np.arange(0, len(expected), 3)[::-1]
    assert np.array_equal(blocks.take(some), expected[some])
    assert np.array_equal(
        RowBlocks(blocks, rows=some).per_row(abs), abs(expected[some])
    )


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int64, np.float32, bool])
def test_other_types_become_float64(dtype, tmp_path):
    values = (X > 0 if dtype is bool else np.abs(X) * 30).astype(dtype)
    for rows in (ArrayRows(values), ipc(values, tmp_path), parquet(values, tmp_path)):
        blocks = np.concatenate([*rows.blocks(7)])
        assert blocks.dtype == np.float64
        assert np.array_equal(blocks, values.astype(float))


def test_a_window_is_taken_once():
    """Blocks by take ask for 16 MiB at a time, not for a block each."""
    rows = ByNumbers(np.zeros((5 * WINDOW_BYTES // 160, 10)))
    assert sum(map(len, rows.blocks())) == len(rows)
    assert rows.times == 3


# -- batches ---------------------------------------------------------------------------


def counted(X, pieces=4):
    begun = [0] * pieces

    def piece(k, part):
        def read():
            begun[k] += 1
            return iter(table_of(part).to_batches(max_chunksize=5))

        return read

    parts = np.array_split(X, pieces)
    made = [piece(k, part) for k, part in enumerate(parts)]
    names = [f"x{j}" for j in range(X.shape[1])]
    return ArrowRows(made, names, [len(part) for part in parts]), begun


def test_a_pass_reads_each_piece_once():
    rows, begun = counted(X)
    for _ in rows.blocks(7):
        pass
    assert begun == [1, 1, 1, 1]


def test_sorted_rows_are_read_in_one_pass_and_other_pieces_are_skipped():
    rows, begun = counted(X)
    for block in rows.blocks(3, np.arange(30, 70, 2)):
        assert len(block)
    assert begun == [0, 1, 1, 0]


def test_what_was_taken_last_is_kept():
    rows, begun = counted(X)
    numbers = np.array([99, 3, 3, 50])
    first = rows.take(numbers)
    assert rows.take(numbers.copy()) is first
    assert begun == [1, 0, 1, 1]
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 0
    rows.take(np.array([3]))
    assert begun == [2, 0, 1, 1]


def test_rows_in_other_columns_are_chosen_by_name(tmp_path):
    pyarrow.parquet.write_table(table_of(X), tmp_path / "x.parquet")
    rows = arrow_rows(tmp_path / "x.parquet", ["x3", "x1"])
    assert np.array_equal(rows.take(np.arange(N)), X[:, [3, 1]])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["a", "b"], "'x0' must hold real numbers or truth values, got string"),
        ([1.0, None], "'x0' must have no missing value, 1 found"),
        ([1, None], "'x0' must have no missing value"),
        ([True, None], "'x0' must have no missing value"),
    ],
)
def test_columns_that_are_no_numbers_are_refused(values, message):
    batch = pa.RecordBatch.from_pydict({"x0": values})
    rows = ArrowRows([lambda: [batch]], ["x0"])
    with pytest.raises(ValueError, match=message):
        rows.take(np.arange(2))
    with pytest.raises(ValueError, match=message):
        vf.Party(rows)


def test_missing_numbers_are_counted():
    values = X.copy()
    values[[3, 70], [0, 2]] = np.nan, np.inf
    for rows in (counted(values)[0], ByNumbers(values)):
        with pytest.raises(ValueError, match="no missing or infinite value, 2 found"):
            vf.Party(rows)


def test_wrong_rows_are_refused(tmp_path):
    rows, _ = counted(X)
    with pytest.raises(ValueError, match="from 0 to 99"):
        rows.take(np.array([3, 100]))
    with pytest.raises(ValueError, match="from 0 to 99"):
        rows.take(np.array([-1]))
    with pytest.raises(ValueError, match="exactly one column 'b'"):
        ArrowRows([lambda: table_of(X).to_batches()], ["b"]).take(np.arange(2))
    with pytest.raises(ValueError, match="at least one column"):
        ArrowRows([], [])
    with pytest.raises(ValueError, match="path must be a file"):
        arrow_rows(tmp_path / "none.parquet")
    with pytest.raises(ValueError, match="matrix of real numbers"):
        as_rows(np.array([["a"]]))
    with pytest.raises(ValueError, match="at least one row"):
        vf.Party(ArrayRows(X[:0]))
    with pytest.raises(NotImplementedError, match="Rows must implement take"):
        Rows().take(np.arange(1))


def test_a_file_that_becomes_shorter_is_told():
    lengths = itertools.chain([50], itertools.repeat(10))
    rows = ArrowRows([lambda: table_of(X[: next(lengths)]).to_batches()], ["x0"])
    with pytest.raises(PartyError, match="changed during the run"):
        rows.take(np.array([20]))


# -- whole runs ------------------------------------------------------------------------

n = 150
RNG = np.random.default_rng(1)
COLUMNS = [RNG.standard_normal((n, d)) for d in (3, 2, 4)]
Y = COLUMNS[0][:, 0] - COLUMNS[2][:, 1] + RNG.standard_normal(n) / 10
BOXED = [np.clip(part / 8, -0.5, 0.5) for part in np.split(RNG.normal(size=(n, 3)), 3)]

RIDGE = {"size": 40, "regularizer": "ridge", "alpha": 0.1}
RUNS = {
    "pooled": vf.CoresetVRLR(size=40, test_fraction=0.2, solver="central"),
    "cg": vf.CoresetVRLR(solver="cg", **RIDGE),
    "saga": vf.CoresetVRLR(solver="saga", max_iter=2, **RIDGE),
    "vkmc": vf.CoresetVKMC(size=40, n_clusters=3, solver="distdim"),
    "fdskl": vf.FDSKLDirect(target="continuous", loss="square"),
    "fkkmeans": vf.FKKMeans(3, 4, n_features=16, n_init=2, iterations=4),
    "mufc": vf.MUFC(n_clusters=3),
    "mufc full": vf.MUFC(n_clusters=3, client_training="full"),
}


def arrays_of_run(strategy, make) -> dict:
    """Return what a run makes; `make` gives a party's rows from their array."""
    parts = BOXED if isinstance(strategy, vf.FKKMeans | vf.MUFC) else COLUMNS
    parties = [
        vf.Party(
            make(part),
            y=Y if strategy.labelled and j == 2 else None,
            columns=[f"x{i}" for i in range(part.shape[1])],
        )
        for j, part in enumerate(parts)
    ]
    result = vf.simulate(strategy, parties, seed=0)
    arrays = {k: v.numpy() for k, v in result.arrays.items()}
    parts_of = getattr(result.model, "parts", None) or []
    arrays |= {f"{j} {k}": v for j, p in enumerate(parts_of) for k, v in p.items()}
    return {k: v for k, v in arrays.items() if not k.endswith("model")}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_has_the_bits_of_a_run_on_arrays(name, tmp_path):
    """Of rows by their numbers; in one run they are those of a file."""

    def make(part):
        if name != "vkmc":
            return ByNumbers(part)
        (folder := tmp_path / str(len(list(tmp_path.iterdir())))).mkdir()
        return parquet(part, folder)

    expected = arrays_of_run(RUNS[name], lambda part: part)
    actual = arrays_of_run(RUNS[name], make)
    assert expected.keys() == actual.keys()
    assert len(expected) > 2
    for key, value in expected.items():
        assert np.array_equal(value, actual[key]), key


@pytest.mark.parametrize("values", [[pd.NA] * 3, []])
def test_a_column_of_integers_may_have_no_value(values):
    column = pd.Series(pd.array(values, "Int64"))
    array = number_array(column, "X")
    assert array.shape == (len(values),)
    assert np.isnan(array).all()


def test_an_integer_of_a_column_must_keep_its_digits():
    column = pd.Series(pd.array([pd.NA, 2**53 + 1], "Int64"))
    with pytest.raises(ValueError, match=r"X must have no integers above 2\^53"):
        number_array(column, "X")
