"""The example with Dask on a local cluster: rows at workers, equal to NumPy."""

import operator
import os
import sys
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

import vfl_flower as vf

pytest.importorskip("distributed", reason="Dask is not installed: dask[distributed]")
EXAMPLE = Path(__file__).parents[2] / "examples" / "dask_rows"
sys.path.insert(0, str(EXAMPLE))

pytestmark = [
    pytest.mark.second,
    # The cluster's own: sockets that close late, and its event loop.
    pytest.mark.filterwarnings("default"),
]

N, D = 120, 3
COLUMNS = [f"x{j}" for j in range(D)]
# Whole numbers: sums are exact in any order.
X = np.random.default_rng(0).integers(-9, 9, (N, D)).astype(np.float64)


@pytest.fixture(scope="module")
def client():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from dask.distributed import Client, LocalCluster

        with (
            LocalCluster(
                n_workers=2,
                threads_per_worker=1,
                processes=True,
                dashboard_address=None,
                host="127.0.0.1",
            ) as cluster,
            Client(cluster) as client,
        ):
            client.run(lambda path=str(EXAMPLE): sys.path.insert(0, path))
            yield client


def write(X, folder) -> list[str]:
    paths = []
    for k, part in enumerate(np.split(X, [50, 50, 90])):  # the second file is empty
        paths.append(str(folder / f"{k}.parquet"))
        names = [f"x{j}" for j in range(X.shape[1])]
        pyarrow.parquet.write_table(
            pa.table(dict(zip(names, part.T, strict=True))), paths[-1]
        )
    return paths


@pytest.fixture(scope="module")
def rows(client, tmp_path_factory):
    from dask_rows import DaskRows

    return DaskRows(client, write(X, tmp_path_factory.mktemp("rows")), COLUMNS)


def test_passes_run_at_the_workers(rows):
    processes = rows.map_reduce(lambda *_: {os.getpid()}, operator.or_, set())
    assert processes
    assert os.getpid() not in processes


RUNS = {
    "cg": vf.CoresetVRLR(size=40, solver="cg", regularizer="ridge", alpha=0.1),
    "fdskl": vf.FDSKLDirect(target="continuous", loss="square"),
    "fkkmeans": vf.FKKMeans(3, 4, n_features=16, n_init=2, iterations=3),
    "mufc": vf.MUFC(n_clusters=3, client_training="full", box="-9,9"),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_party_on_the_cluster_takes_part_in_each_algorithm(name, client, tmp_path):
    """All that a pass refers to can be sent, and the result is that on an array."""
    from dask_rows import DaskRows

    rng = np.random.default_rng(1)
    others = [rng.integers(-9, 9, (N, D)).astype(np.float64) for _ in range(2)]
    y = X[:, 0] + rng.standard_normal(N)
    supervised = name in ("cg", "pooled", "fdskl")
    remote = DaskRows(client, write(X, tmp_path), COLUMNS)

    def run(first):
        parts = [first, *others]
        parties = [
            vf.Party(part, y=y if supervised and j == 0 else None, columns=COLUMNS)
            for j, part in enumerate(parts)
        ]
        result = vf.simulate(RUNS[name], parties, seed=0)
        return {k: v.numpy() for k, v in result.arrays.items() if "model" not in k}

    expected, actual = run(X), run(remote)
    assert expected.keys() == actual.keys()
    for key, value in expected.items():
        if value.dtype.kind == "f":
            np.testing.assert_allclose(actual[key], value, rtol=1e-8, atol=1e-10)
        else:
            assert np.array_equal(actual[key], value), key
