"""Peak memory and time of the first reading of party files, each in a new process.

    python benchmarks/convert.py --rows 5000000 lz4-one.arrow a.csv

writes for each name a file with this number of rows, 20 columns of numbers and text
ids, and lets a process convert it as a SuperNode does at the first message. Names:
``a.csv``;
``one`` or ``batches`` (of 65,536 rows) ``.parquet``, ``.arrow``, ``lz4-one.arrow``,
``zstd-batches.arrow``, ``lz4-stream.arrow`` and so on; ``rows``, ``columns`` (order of
X) and ``packed.npz``. The files are in TMPDIR, which should be on a disk.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

COLUMNS = 20
BATCH = 2**16

CONVERT = """
import sys, time
from vfl_flower.data import load_party, read_ids
from vfl_flower.data.source import PartySource

start = time.perf_counter()
source = PartySource(data=sys.argv[1], id_column=sys.argv[2])
n = load_party(source).n_rows
assert len(read_ids(source)) == n
status = open("/proc/self/status").read().split()
peak = int(status[status.index("VmHWM:") + 1]) / 1000
print(f"{peak:8.0f} MB {time.perf_counter() - start:8.1f} s")
"""


def write(path: Path, rows: int) -> None:
    """Write a file in the format that its name states."""
    rng, kind = np.random.default_rng(0), path.stem.split("-")
    ids = pa.array([f"P{i:09d}" for i in range(rows)])
    if path.suffix == ".npz":
        X = np.empty((rows, COLUMNS), order="F" if kind == ["columns"] else "C")
        for j in range(COLUMNS):
            X[:, j] = rng.standard_normal(rows).round(4)
        save = np.savez_compressed if kind == ["packed"] else np.savez
        save(path, X=X, ids=ids.to_numpy(zero_copy_only=False).astype(str))
        return
    columns = {f"c{j}": rng.standard_normal(rows).round(4) for j in range(COLUMNS)}
    table = pa.table({"id": ids} | columns)
    chunk = BATCH if "batches" in kind else rows
    match path.suffix:
        case ".csv":
            pyarrow.csv.write_csv(table, path)
        case ".parquet":
            pyarrow.parquet.write_table(table, path, row_group_size=chunk)
        case ".arrow":
            packed = kind[0] if kind[0] in ("lz4", "zstd") else None
            opener = pa.ipc.new_stream if "stream" in kind else pa.ipc.new_file
            options = pa.ipc.IpcWriteOptions(compression=packed)
            with opener(str(path), table.schema, options=options) as writer:
                writer.write_table(table, max_chunksize=chunk)


def main() -> None:
    """Print a line for each file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="+", help="the files, see above")
    parser.add_argument("--rows", type=int, default=1_000_000)
    options = parser.parse_args()
    for name in options.names:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            write(path, options.rows)
            size = path.stat().st_size / 1e6
            print(f"{name:20} {size:8.0f} MB on the disk,", end=" ", flush=True)
            command = [sys.executable, "-W", "ignore", "-c", CONVERT, str(path)]
            command.append("ids" if path.suffix == ".npz" else "id")
            cache = {"VFL_FLOWER_CACHE": f"{folder}/cache"}
            subprocess.run(command, env=os.environ | cache, check=True)


if __name__ == "__main__":
    main()
