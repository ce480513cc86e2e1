"""Peak memory and time of a party whose rows stay in a Parquet file.

    python benchmarks/rows.py --rows 1000000 --columns 50

Party 0 is a separate process with these numbers of rows and columns, either in a memory
map or in the Arrow batches of a Parquet file. Two small parties and the server are
other processes. The pages of a memory map that were read count as memory, although the
system may reclaim them.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from processes import ProcessGrid, start, stop

from vfl_flower import MUFC, CoresetVKMC, CoresetVRLR, FDSKLDirect, FKKMeans, Party
from vfl_flower.rows import Rows

RIDGE = {"regularizer": "ridge", "alpha": 0.1}
SPLIT_COLUMNS = {
    "CoresetVRLR": CoresetVRLR(size=5000, **RIDGE),
    "CoresetVRLR cg": CoresetVRLR(size=5000, solver="cg", **RIDGE),
    "CoresetVKMC": CoresetVKMC(size=5000, n_clusters=5, local_clustering="seeding"),
    "FDSKLDirect": FDSKLDirect(target="continuous", loss="square", budget=128),
}
SPLIT_ROWS = {
    "FKKMeans": FKKMeans(n_clusters=3, n_components=4, n_features=16, iterations=2),
    "MUFC": MUFC(n_clusters=3, box="-9,9"),
}


def party(index: int, kind: str, file: str, rows: int, columns: int) -> Party:
    """Return one party; the last one has labels."""
    import pyarrow.parquet  # noqa: F401  # part of the baseline

    from vfl_flower.data.rows import arrow_rows

    # The imports of a solver are part of the baseline too.
    import vfl_flower.numerics.kernel_solvers  # noqa: F401  # isort: skip

    X: np.ndarray | Rows
    if index > 0:
        X = np.random.default_rng(index).standard_normal((rows, columns))
    elif kind == "memory map":
        X = np.load(f"{file}.npy", mmap_mode="r")
    else:
        X = arrow_rows(f"{file}.parquet")
    y = np.arange(rows) % 7.0 if kind == "labels" else None
    names = [f"x{j}" for j in range(X.shape[1])]
    return Party(X, y=y, index=index, name=f"p{index}", columns=names, checked=True)


def write(file: Path, rows: int, columns: int) -> None:
    """Write the rows twice, in blocks."""
    import pyarrow as pa
    import pyarrow.parquet

    rng = np.random.default_rng(0)
    shape, step = (rows, columns), 2**16
    X = np.lib.format.open_memmap(f"{file}.npy", "w+", np.float64, shape)
    schema = pa.schema([(f"x{j}", pa.float64()) for j in range(columns)])
    with pyarrow.parquet.ParquetWriter(f"{file}.parquet", schema) as writer:
        for first in range(0, rows, step):
            block = rng.standard_normal((min(step, rows - first), columns))
            X[first : first + len(block)] = block
            named = dict(zip(schema.names, block.T, strict=True))
            writer.write_table(pa.table(named), row_group_size=step)
    X.flush()


def main() -> None:
    """Run each strategy on both kinds of rows, and print memory and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=50)
    parser.add_argument("--only", default="", help="part of a strategy's name")
    options = parser.parse_args()
    n, d = options.rows, options.columns
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "x"
        write(file, n, d)
        for name, strategy in {**SPLIT_COLUMNS, **SPLIT_ROWS}.items():
            if options.only not in name:
                continue
            small = (n, 2) if name in SPLIT_COLUMNS else (1000, d)
            seconds = {}
            for kind in ("memory map", "Parquet"):
                parties = [(0, kind, str(file), n, d)]
                labels = "labels" if hasattr(strategy, "loss") or "VRLR" in name else ""
                parties += [(1, "", "", *small), (2, labels, "", *small)]
                pipes = start(party, parties)
                print(f"{name}, {kind}:", flush=True)
                result = strategy.replace(seed=0).start(ProcessGrid(pipes))
                entries = result.ledger.entries.values()
                of_party = [e.seconds_computed for e in entries if e.party == "p0"]
                seconds[kind] = sum(of_party)
                stop(pipes[:1])
                for pipe in pipes[1:]:
                    pipe.send_bytes(b"")
            ratio = seconds["Parquet"] / seconds["memory map"]
            print(f"{name}: {seconds['Parquet']:.1f} s, {ratio:.2f} times", flush=True)


if __name__ == "__main__":
    main()
