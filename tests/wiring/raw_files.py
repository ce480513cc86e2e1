"""Raw files as three organisations have them, before anybody has prepared anything.

The rows overlap and stand in another order in each file; there are texts, dates,
missing values and labels in words. One pattern is in all of it, so that what a run
finds can be judged: see :func:`write_columns` and :func:`write_rows`.
"""

from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather as feather

HOSPITAL, LABORATORY, INSURER = "hospital", "laboratory", "insurer"


def write_columns(folder: Path, n: int) -> tuple[dict[str, Path], pd.DataFrame]:
    """Write three files of patients, split by columns."""
    rng = np.random.default_rng(0)
    age = rng.integers(18, 95, n)
    creatinine = rng.lognormal(0.0, 0.4, n)
    stays = rng.poisson(1.5, n)
    score = (age - 56) / 15 + 2.5 * np.log(creatinine) + 0.9 * (stays - 1.5)
    table = pd.DataFrame(
        {
            "patient": [f"PAT-{k:06}" for k in 700_000 + rng.permutation(n)],
            "age": age,
            "sex": rng.choice(["female", "male"], n),
            "ward": [f"ward {k:03}" for k in rng.zipf(1.6, n) % 150],
            "admitted": [date(2024, 1, 1) + timedelta(int(k)) for k in age * 7 % 700],
            "pressure": np.round(rng.normal(130, 15, n), 1),
            "creatinine": np.round(creatinine, 5),
            "glucose": np.round(rng.normal(5.5, 1.1, n), 5),
            "taken": pd.Timestamp("2025-03-01 08:00:00")
            + pd.to_timedelta(rng.integers(0, 500_000, n), unit="s"),
            "region": rng.choice(["north", "south", "east"], n),
            "premium": np.round(rng.gamma(4.0, 60.0, n), 2),
            "stays": stays,
            "readmitted": np.where(score + rng.normal(0, 0.5, n) > 0, "yes", "no"),
        }
    )
    columns = {
        HOSPITAL: ["age", "sex", "ward", "admitted", "pressure"],
        LABORATORY: ["creatinine", "glucose", "taken"],
        INSURER: ["region", "premium", "stays", "readmitted"],
    }
    files = {}
    for name, own in columns.items():
        rows = rng.permutation(n)[: n - n // 10]
        part = table.loc[rows, ["patient", *own]].reset_index(drop=True)
        files[name] = _write(part, folder, name, rng)
    return files, table.set_index("patient")


def write_rows(folder: Path, n: int) -> tuple[dict[str, Path], pd.DataFrame]:
    """Write three files of the same columns, split by rows, with four clusters."""
    rng = np.random.default_rng(0)
    cluster = rng.integers(4, size=3 * n)
    centres = np.array([[0.1, 0.1], [0.1, 0.9], [0.9, 0.1], [0.9, 0.9]])
    points = np.clip(centres[cluster] + 0.03 * rng.normal(size=(3 * n, 2)), 0, 1)
    table = pd.DataFrame(
        {
            "visit": [f"VIS-{k:06}" for k in 900_000 + rng.permutation(3 * n)],
            "severity": np.round(points[:, 0], 6),
            "recovery": np.round(points[:, 1], 6),
            "cluster": cluster,
        }
    )
    files = {}
    for j, name in enumerate(("clinic-a", "clinic-b", "clinic-c")):
        names = ["visit", "severity", "recovery"]
        part = table.loc[j * n : (j + 1) * n - 1, names].reset_index(drop=True)
        files[name] = _write(part, folder, name, None)
    return files, table.set_index("visit")


def _write(
    part: pd.DataFrame, folder: Path, name: str, rng: np.random.Generator | None
) -> Path:
    """Write a file in the format of its party; the CSV is of a German spreadsheet."""
    folder.mkdir(parents=True, exist_ok=True)
    if name in (HOSPITAL, "clinic-a"):
        path = folder / f"{name}.csv"
        if rng is not None:  # a device that failed now and then
            texts = part["pressure"].astype(str)
            part = part.assign(pressure=texts.mask(rng.random(len(part)) < 0.03, "?"))
        part.to_csv(path, sep=";", index=False)
    elif name in (LABORATORY, "clinic-b"):
        path = folder / f"{name}.parquet"
        if rng is not None:
            part = part.assign(
                glucose=part["glucose"].mask(rng.random(len(part)) < 0.05)
            )
        part.to_parquet(path, index=False)
    else:
        path = folder / f"{name}.arrow"
        feather.write_feather(
            pa.Table.from_pandas(part, preserve_index=False),
            path,
            compression="uncompressed",
        )
    return path
