"""The page of a run: one HTML file that asks nothing of any other place.

Whatever comes from a run is escaped, and the page allows no script.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vfl_flower.app.extras import reason_missing
from vfl_flower.app.report.drawing import Figure
from vfl_flower.app.report.figures import finite, last
from vfl_flower.app.report.page_template import STYLE, TEMPLATE
from vfl_flower.app.report.units import duration, size
from vfl_flower.server.metrics import OF_SPREAD, SPREAD

MOST_PARTIES = 40
"""Most parties of a table; the others are added up in one more line."""

MOST_OF_TEXT = 400
"""Most characters of a setting, a name or a warning; ``result.json`` has the whole."""

UNEXPLAINED = "The strategy does not say what this number means."

COSTS = {
    "Round trips": (
        "round_trips",
        "How often the server asked and waited for all answers. In a real deployment "
        "each takes a second or more, whatever its size.",
    ),
    "Bytes from all parties": ("bytes_up", "What all parties together sent."),
    "Bytes to all parties": ("bytes_down", "What the server sent to all of them."),
    "Time waited": (
        "seconds_waited",
        "How long the server waited for answers, of all the run.",
    ),
    "Time computed by parties": (
        "seconds_computed",
        "The parties' own computing, added up over the parties.",
    ),
    "Bytes to evaluate": (
        "evaluation_bytes_up",
        "Of the bytes from all parties, those of steps that only judge the model.",
    ),
    "Time in all": (
        "seconds",
        "From the start to the end at the server; what is not waited for parties is "
        "the server's own computing.",
    ),
}
"""What a result and its ledger count, and what it means."""

DOING = ("computing", "sending and starting", "waiting for others")
"""What a party's time goes into."""

TOGETHER = "all parties, nothing pooled"
"""The model of a run, beside those of parties alone."""

WORDS = {
    "Party": "An organisation that takes part with data of its own.",
    "Server": "The program that sends requests to the parties and combines their "
    "replies. It has no rows of its own.",
    "Label": "The column that the model predicts.",
    "Rows held out": "Rows left out of training, to judge the model.",
    "Round trip": "One request from the server to the parties, and all their replies.",
    "Under a mask": "Hidden by random numbers that cancel in the sum over all parties: "
    "the server learns the sum, but no party's contribution.",
    "In the clear": "Readable by whoever receives it.",
    "Standard error": OF_SPREAD,
    "Consent": "A party's file that says what may leave it. Its program refuses "
    "everything else.",
}
"""What the page's words mean."""


def page_of(record: Mapping[str, Any], figures: Sequence[Figure]) -> str:
    """Return the page of a run from its ``result.json`` and its figures."""
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["cut"] = cut
    results: Mapping[str, Any] = record["results"]
    name, first = next(iter(results.items()))
    return environment.from_string(TEMPLATE).render(
        style=STYLE,
        record=record,
        results=results,
        name=name,
        first=first,
        several=len(results) > 1,
        short=in_short(results),
        warnings=warnings_of(results),
        metrics=metrics_of(results),
        costs=costs_of(results),
        tables=list(_tables(first)),
        pictures=figures,
        missing=reason_missing("matplotlib"),
        parties=list(_parties(first)),
        steps=list(_steps(first)),
        learned=_learned(first["learned"]),
        doing=DOING,
        words=WORDS,
    )


def warnings_of(results: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return why results may be worse than they should be, each by its result."""
    return [(name, text) for name, r in results.items() for text in r["warnings"]]


def cut(text: object) -> str:
    """Return a text, or its beginning where it is long."""
    whole = str(text)
    return whole if len(whole) <= MOST_OF_TEXT else f"{whole[:MOST_OF_TEXT]}…"


def in_short(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return what a run has come to, in a few sentences: the first result's."""
    first = next(iter(results.values()))
    ledger = first["ledger"]
    times = "round trip" if ledger["round_trips"] == 1 else "round trips"
    cost = (
        f"The run took {duration(first['seconds'])} and {ledger['round_trips']:,} "
        f"{times}; the parties sent {size(ledger['bytes_up'])} and received "
        f"{size(ledger['bytes_down'])}."
    )
    if first["kinds"]:
        meanings = "; ".join(first["kinds"].values())
        left = f"Beyond sums over all parties, this left a party: {meanings}."
    else:
        left = (
            "Nothing left a party that its consent has to allow: only names, sizes, "
            "sums over all parties and encrypted values."
        )
    note = [f"{first['note'][0].upper()}{first['note'][1:]}."] if first["note"] else []
    return [_who(first), *verdicts(last(first)), *note, cost, left]


def _who(result: Mapping[str, Any]) -> str:
    parties = result["parties"]
    names = ", ".join(cut(party["name"]) for party in parties[:6])
    more = f" and {len(parties) - 6} more" if len(parties) > 6 else ""
    count = "1 party" if len(parties) == 1 else f"{len(parties)} parties"
    text = f"{count} took part: {names}{more}. "
    columns = [party["columns"] for party in parties]
    rows = [party["rows"] for party in parties]
    if result["partition"] == "vertical":
        text += f"They hold {sum(columns):,} columns of the same {rows[0]:,} rows."
    elif result["partition"] == "horizontal":
        named = "column" if max(columns) == 1 else "columns"
        text += f"They hold {sum(rows):,} rows of the same {max(columns):,} {named}."
    else:
        text += f"They hold {min(rows):,} to {max(rows):,} rows each."
    holders = [cut(party["name"]) for party in parties if party["labels"]]
    if holders and result["partition"] == "vertical":
        text += f" The labels are at {', '.join(holders[:6])}."
    return text


def verdicts(metrics: Mapping[str, Any]) -> list[str]:
    """Return how good a model is beside no model, a sentence for each way to see it."""
    known = {k: v for k, v in metrics.items() if finite(v)}
    sentences = []
    rows = f"the {known['test_rows']:,.0f} rows" if "test_rows" in known else "rows"
    if "test_error" in known:
        text = (
            f"On {rows} held out the model names the right class for "
            f"{_share(1 - known['test_error'])}"
        )
        if "test_base_error" in known:
            text += (
                "; naming the most frequent class each time would be right for "
                f"{_share(1 - known['test_base_error'])}"
            )
        sentences.append(f"{text}.")
    if "test_auc" in known:
        sentences.append(
            "Of a positive and a negative row it gives the positive one the higher "
            f"score in {_share(known['test_auc'])} of all pairs; guessing, in 50 %."
        )
    if "test_r2" in known:
        text = (
            f"On {rows} held out the model explains {_share(known['test_r2'])} of the "
            "variance of the labels; naming their mean each time would explain 0 %"
        )
        if "test_loss" in known:
            typical = math.sqrt(known["test_loss"])
            text += f". A typical error is {typical:.3g}, in the unit of the label"
        sentences.append(f"{text}.")
    if "explained" in known:
        sentences.append(
            f"The clusters explain {_share(known['explained'])} of the spread of the "
            "rows; a single cluster would explain 0 %."
        )
    return sentences


def metrics_of(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the metrics of all results with what they mean, those explained first."""
    values = [last(result) for result in results.values()]
    explained: dict[str, Any] = {}
    for result in results.values():
        explained |= result["explained"]
    measured = [metric for of in values for metric in of]
    rows = []
    for metric in dict.fromkeys([*explained, *measured]):
        is_spread = metric.endswith(SPREAD) and metric.removesuffix(SPREAD) in measured
        if is_spread or metric not in measured:
            continue
        unexplained = {"title": metric.replace("_", " "), "text": UNEXPLAINED}
        row = {"kind": "number", "better": ""} | unexplained | explained.get(metric, {})
        cells = [
            _with_spread(of.get(metric), of.get(f"{metric}{SPREAD}"), row["kind"])
            for of in values
        ]
        rows.append(row | {"name": metric, "values": cells})
    return rows


def _tables(
    result: Mapping[str, Any],
) -> Iterator[tuple[str, Sequence[object], Sequence[tuple[object, Sequence[object]]]]]:
    """Yield further tables of a result: their captions, headers and rows.

    A result may have ``beside``: a metric of models of no run, by their names, and a
    ``text`` that says what they are.
    """
    if beside := result.get("beside"):
        ((metric, others),) = ((k, v) for k, v in beside.items() if k != "text")
        title = result["explained"].get(metric, {}).get("title", metric)
        values = {TOGETHER: last(result)[metric]} | others
        rows = [(name, [amount(value, "number")]) for name, value in values.items()]
        yield f"Beside each party alone. {beside['text']}", ("Model", title), rows
    if confusion := result.get("curves", {}).get("confusion"):
        numbers = range(1, len(confusion) + 1)
        caption = (
            "Rows held out by the class that is right (lines) and the class that the "
            "model names (columns), in the ascending order of the labels"
        )
        yield caption, ("Class", *numbers), list(zip(numbers, confusion, strict=True))
    if counts := result["counts"]:
        caption = (
            "What the run has counted. The server knows these numbers, and not which "
            "rows or texts they count"
        )
        yield caption, ("Of", "Count"), [(k, [f"{n:,}"]) for k, n in counts.items()]


def _with_spread(value: Any, spread: Any, kind: str) -> str:
    if value is None:
        return "-"
    text = amount(value, kind)
    if spread is None or not finite(spread):
        return text
    if kind == "share":
        return f"{text.removesuffix(' %')} ± {100 * spread:.1f} %"
    return f"{text} ± {amount(float(f'{spread:.2g}'), kind)}"


def amount(value: Any, kind: str) -> str:
    """Return a metric as people read it; ``inf`` and ``nan`` as they are."""
    if not finite(value):
        return str(value)
    if kind == "share":
        return _share(value)
    if kind == "count" or 1e4 <= abs(value) < 1e9:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


def costs_of(results: Mapping[str, Any]) -> list[tuple[str, str, list[str]]]:
    """Return what a run has cost: a title, what it means, and each result's figure."""
    return [
        (title, text, [_cost(key, r | r["ledger"]) for r in results.values()])
        for title, (key, text) in COSTS.items()
    ]


def _cost(key: str, counts: Mapping[str, float]) -> str:
    show = size if "bytes" in key else duration if "seconds" in key else "{:,}".format
    return show(counts[key])


def times_of(ledger: Mapping[str, Any], party: str) -> list[float]:
    """Return the seconds of a party in all steps: computing, sending, waiting.

    The three add up to the time that the server waited. Sending is the network,
    Flower's queues, and the start of a process. A party waits until the slowest one has
    answered, and where only others are asked.
    """
    entries = {e["action"]: e for e in ledger["entries"] if e["party"] == party}
    times = []
    for step, waits in ledger["waits"].items():
        entry, wait = entries.get(step, {}), sum(waits)
        computed = min(wait, entry.get("seconds_computed", 0.0))
        answered = min(wait, max(computed, entry.get("seconds_answered", 0.0)))
        times.append((computed, answered - computed, wait - answered))
    return [sum(seconds) for seconds in zip(*times, strict=True)]


def _parties(result: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Yield each party and the cells with what it holds and sent, and its time."""
    ledger = result["ledger"]
    lines: list[tuple[str, list[float]]] = []
    for party in result["parties"]:
        name = party["name"]
        entries = [e for e in ledger["entries"] if e["party"] == name]
        sent = [sum(e[way] for e in entries) for way in ("bytes_up", "bytes_down")]
        held = [party[key] for key in ("rows", "columns", "labels")]
        lines.append((name, [*held, *sent, *times_of(ledger, name)]))
    if rest := lines[MOST_PARTIES:]:
        sums = map(sum, zip(*(numbers for _, numbers in rest), strict=True))
        lines[MOST_PARTIES:] = [(f"{len(rest)} others, added up", [*sums])]
    for name, (rows, columns, labels, up, down, *seconds) in lines:
        counts = f"{rows:,}", f"{columns:,}", f"{labels:,}" if labels else "-"
        yield name, [*counts, size(up), size(down), *map(duration, seconds)]


def _steps(result: Mapping[str, Any]) -> Iterator[tuple[str, list[str], str]]:
    """Yield each step, the cells of its costs to all parties, and the slowest one."""
    for step, waits in result["ledger"]["waits"].items():
        entries = [e for e in result["ledger"]["entries"] if e["action"] == step]
        up, down = (sum(e[way] for e in entries) for way in ("bytes_up", "bytes_down"))
        none: dict[str, Any] = {"party": "", "seconds_computed": 0.0}
        slowest = max(entries, key=lambda e: float(e["seconds_computed"]), default=none)
        times = sum(waits), slowest["seconds_computed"]
        cells = [f"{len(waits):,}", size(up), size(down), *map(duration, times)]
        yield step, cells, slowest["party"]


def _learned(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[Any]]]:
    """Return who learned what by who it is; what the server told comes last."""
    groups: dict[str, list[Any]] = {}
    for row in sorted(rows, key=lambda row: row["how"] == "told by the server"):
        groups.setdefault(row["who"], []).append(row)
    return list(groups.items())
