"""What the tests of party data share: loading, refusals, and a frame."""

import os

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pytest

from vfl_flower.data import load_party, read_ids
from vfl_flower.data.checking import check
from vfl_flower.data.source import PartySource
from vfl_flower.party.party import PartyError


def load(path, encoding=None, **options):
    return load_party(PartySource(data=str(path), **options), encoding=encoding)


def findings_in(path, **options):
    return check(PartySource(data=str(path), **options)).findings


def ids_in(path, **options):
    ids = read_ids(PartySource(data=str(path), **options))
    return None if ids is None else list(ids)


def refusal(path, encoding=None, **options):
    with pytest.raises(PartyError) as caught:
        load(path, encoding, **options)
    text = str(caught.value)
    assert os.sep not in str(path) or str(path) not in text
    assert "/" not in text
    assert caught.value.__cause__ is None
    assert "secret" not in text
    return text


FRAME = pd.DataFrame(
    {
        "id": [7, 3, 11, 5],
        "distance": [1400.0, 1416.5, 1089.25, 0.1],
        "seats": [55, 149, 20, 178],
        "delay": [11.0, -20.5, 33.0, 0.0],
    }
)


def write_frame(frame, path):
    match path.suffix:
        case ".csv":
            frame.to_csv(path, index=False)
        case ".parquet":
            frame.to_parquet(path, index=False)
        case ".feather":
            frame.to_feather(path)
        case ".arrow" if "stream" in path.name:
            table = pa.Table.from_pandas(frame)
            with pa.ipc.new_stream(str(path), table.schema) as writer:
                writer.write_table(table)
        case ".arrow":
            pyarrow.feather.write_feather(frame, path, compression="uncompressed")
        case ".npz":
            np.savez(
                path,
                X=frame[["distance", "seats"]].to_numpy(),
                y=frame["delay"].to_numpy(),
                ids=frame["id"].to_numpy(),
                columns=np.array(["distance", "seats"]),
            )
    return path


TEXT = "id,a,b\n1,2,3\n2,4,5\n"
