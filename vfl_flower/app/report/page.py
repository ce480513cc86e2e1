"""The page of a run: one HTML file that loads nothing.

Text from a run is escaped, and the page runs no script.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vfl_flower.app.extras import reason_missing
from vfl_flower.app.plan.learned import BY_SERVER
from vfl_flower.app.report.drawing import Figure
from vfl_flower.app.report.figures import finite, last
from vfl_flower.app.report.page_template import STYLE, TEMPLATE
from vfl_flower.app.report.units import duration, size
from vfl_flower.server.metrics import OF_SPREAD, SPREAD

MOST_PARTIES = 40
"""Maximum number of parties in a table, whose last line is the sum of the rest."""

MOST_OF_TEXT = 400
"""Maximum length of a setting, name or warning; ``result.json`` has the full text."""

UNEXPLAINED = "The strategy does not say what this number means."

COSTS = {
    "Round trips": (
        "round_trips",
        "Requests of the server, each with the replies of all parties. On SuperNodes "
        "each takes a second or more, whatever its size.",
    ),
    "Bytes from all parties": ("bytes_up", "Sent by all parties together."),
    "Bytes to all parties": ("bytes_down", "Sent by the server to all parties."),
    "Time waited": ("seconds_waited", "Time that the server waited for replies."),
    "Computing by all parties": ("seconds_computed", "Sum over all parties."),
    "Bytes to evaluate": ("evaluation_bytes_up", "Sent by parties to test the model."),
    "Time in all": ("seconds", "At the server: waiting, and its own computing."),
}
"""Titles of costs, with their keys in a result or its ledger, and their meanings."""

COMPARED = {
    "test_error": "Error rates of",
    "explained": "Spread explained by",
    "test_loss": "Typical errors of",
}
"""Metrics that compare models; the first of these metrics in a result is shown."""

LEARNED = {
    "in the clear": "The server learned names, sizes and values of single parties.",
    "under a mask": "The server learned sums over all parties.",
    "under a mask and a pad": "Parties learned sums that the server cannot read.",
    "encrypted": "Parties learned values that other parties encrypted for them.",
}
"""Sentences on who learned what, by the text of ``how`` before " for "."""

TOGETHER = "all parties, nothing pooled"
"""Name of the run's model, among models of single parties."""

WORDS = {
    "Party": "An organisation that takes part with its own data.",
    "Server": "The program that sends requests to the parties and combines their "
    "replies. It contributes no rows.",
    "Label": "The column that the model predicts.",
    "Rows held out": "Rows left out of training, on which the model is evaluated.",
    "Round trip": "One request from the server to the parties, and all their replies.",
    "Under a mask": "Hidden by random numbers that cancel in the sum over all parties: "
    "the server learns the sum, but no party's contribution.",
    "In the clear": "Readable by anyone who receives it.",
    "Standard error": OF_SPREAD,
    "Consent": "A file that permits certain values, besides sums, to leave a party. "
    "The party's program refuses to send anything else.",
}
"""Definitions of the words of the page."""


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
        words=WORDS,
    )


def warnings_of(results: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return warnings about results, each with the name of its result."""
    return [(name, text) for name, r in results.items() for text in r["warnings"]]


def cut(text: object) -> str:
    """Return text, shortened if it is long."""
    whole = str(text)
    return whole if len(whole) <= MOST_OF_TEXT else f"{whole[:MOST_OF_TEXT]}…"


def in_short(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a run's summary, which starts with the outcome of its first result."""
    first = next(iter(results.values()))
    ledger = first["ledger"]
    cost = (
        f"The run took {duration(first['seconds'])} and {ledger['round_trips']:,} "
        f"round trips; the parties sent {size(ledger['bytes_up'])} and received "
        f"{size(ledger['bytes_down'])}."
    )
    note = [f"{first['note'][0].upper()}{first['note'][1:]}."] if first["note"] else []
    unit = first.get("unit") or f"(in the unit of {first.get('label', 'the label')})"
    good = [*verdicts(last(first), cut(unit)), *_compared(results)]
    return [*good, *note, _who(first), *_who_learned(results), cost]


def _compared(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a comparison with models of other results and of single parties."""
    first, *others = results
    for metric, what in COMPARED.items():
        models = {name: last(results[name]).get(metric, -1) for name in others}
        models |= results[first].get("beside", {}).get(metric, {})
        shown = [
            f"{cut(name)} {_error(value, metric)}"
            for name, value in models.items()
            if finite(value) and value >= 0
        ]
        if shown and metric in last(results[first]):
            return [f"{what} other models: {'; '.join(shown)}."]
    return []


def _who(result: Mapping[str, Any]) -> str:
    """Return a sentence on the parties and the data that they held."""
    parties = result["parties"]
    names = ", ".join(cut(party["name"]) for party in parties[:6])
    more = f" and {len(parties) - 6} more" if len(parties) > 6 else ""
    columns = [party["columns"] for party in parties]
    rows = [party["rows"] for party in parties]
    held = f"They held {min(rows):,} to {max(rows):,} rows each"
    if result["partition"] == "vertical":
        held = f"Together they held {sum(columns):,} columns of {rows[0]:,} rows"
        if holders := [cut(party["name"]) for party in parties if party["labels"]]:
            held += f", with labels at {', '.join(holders[:6])}"
    elif result["partition"] == "horizontal":
        held = f"Together they held {sum(rows):,} rows of {max(columns):,} columns each"
    return f"{len(parties)} parties took part: {names}{more}. {held}."


def _who_learned(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return sentences on the information that the server and the parties learned."""
    ways, kinds = set(), dict[str, str]()
    for result in results.values():
        ways |= {row["how"].partition(" for ")[0] for row in result["learned"]}
        kinds |= result["kinds"]
    readers = " ".join(text for way, text in LEARNED.items() if way in ways)
    revealed = "; ".join(kinds.values()) or "only sizes and numbers that steps declare"
    revealed = revealed.replace("this party's", "a party's")
    text = f"Beyond sums over all parties, the run revealed: {revealed}."
    if any(len(result["parties"]) == 2 for result in results.values()):
        text += " With two parties, a sum reveals the other party's contribution."
    return [readers, text]


def verdicts(metrics: Mapping[str, Any], unit: str = "") -> list[str]:
    """Compare a model with a trivial model in sentences; `unit` follows its error."""
    known = {k: v for k, v in metrics.items() if finite(v)}
    sentences = []
    rows = f"the {known['test_rows']:,.0f} rows" if "test_rows" in known else "rows"
    if "test_error" in known:
        right = f"the right class for {_share(1 - known['test_error'])}"
        text = f"On {rows} held out, the model predicts {right}"
        if "test_base_error" in known:
            base = _share(1 - known["test_base_error"])
            text += f"; the most frequent class would be right for {base}"
        sentences.append(f"{text}.")
    if "test_auc" in known:
        sentences.append(
            "The model gives a positive row a higher score than a negative row in "
            f"{_share(known['test_auc'])} of all pairs; guessing would do so in 50 %."
        )
    if "test_r2" in known:
        r2, loss = known["test_r2"], known.get("test_loss")
        text = f"the model explains {_share(r2)} of the variance of the labels"
        if loss is not None:
            error = f"{_error(loss, 'test_loss')} {unit}".rstrip()
            text = f"the typical error (root mean square) is {error}, and {text}"
            if r2 < 1:
                base = _error(loss / (1 - r2), "test_loss")
                text += f"; always predicting their mean would give an error of {base}"
        sentences.append(f"On {rows} held out, {text}.")
    if "explained" in known:
        sentences.append(
            f"The clusters explain {_share(known['explained'])} of the spread of the "
            "rows; a single cluster would explain 0 %."
        )
    return sentences


def _error(value: float, metric: str) -> str:
    """Return an error as text; for a mean squared error, return its root."""
    return f"{math.sqrt(value):.3g}" if metric == "test_loss" else _share(value)


def metrics_of(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return all results' metrics and their meanings, with explained metrics first."""
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


def _tables(result: Mapping[str, Any]) -> Iterator[tuple[str, Sequence[Any], Any]]:
    """Yield further tables of a result: their captions, headers and rows.

    A result may have ``beside``: the values of a metric for models from outside the
    run, by model name, and a ``text`` about these models.
    """
    if beside := result.get("beside"):
        ((metric, others),) = ((k, v) for k, v in beside.items() if k != "text")
        title = result["explained"].get(metric, {}).get("title", metric)
        values = {TOGETHER: last(result)[metric]} | others
        rows = [(name, [amount(value, "number")]) for name, value in values.items()]
        yield f"Compared with single parties. {beside['text']}", ("Model", title), rows
    if confusion := result.get("curves", {}).get("confusion"):
        numbers = range(1, len(confusion) + 1)
        caption = (
            "Rows held out, by class (lines) and by predicted class (columns), in "
            "ascending order of the labels"
        )
        yield caption, ("Class", *numbers), list(zip(numbers, confusion, strict=True))
    if counts := result["counts"]:
        caption = (
            "Counts of the run. The server knows these numbers, but not which rows or "
            "ids they count"
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
    """Return a metric as text; ``inf`` and ``nan`` are unchanged."""
    if not finite(value):
        return str(value)
    if kind == "share":
        return _share(value)
    if kind == "count" or 1e4 <= abs(value) < 1e9:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


def costs_of(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the costs of all results with their meanings."""
    rows = []
    for title, (key, text) in COSTS.items():
        show = size if "bytes" in key else duration if "sec" in key else "{:,}".format
        values = [show((r | r["ledger"])[key]) for r in results.values()]
        rows.append(dict(title=title, text=text, name=title.lower(), values=values))
    return rows


def times_of(ledger: Mapping[str, Any], party: str) -> list[float]:
    """Return the seconds of a party in all steps: computing, sending, waiting.

    These three times add up to the time that the server waited. Sending covers the
    network, Flower's queues and the start of a process. A party waits for the slowest
    party, and also while only other parties have requests.
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
    """For each party, yield a table row with its sizes, bytes and seconds."""
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
    """For each step, yield a table row with its costs, and the slowest party."""
    for step, waits in result["ledger"]["waits"].items():
        entries = [e for e in result["ledger"]["entries"] if e["action"] == step]
        up, down = (sum(e[way] for e in entries) for way in ("bytes_up", "bytes_down"))
        none: dict[str, Any] = {"party": "", "seconds_computed": 0.0}
        slowest = max(entries, key=lambda e: float(e["seconds_computed"]), default=none)
        times = sum(waits), slowest["seconds_computed"]
        cells = [f"{len(waits):,}", size(up), size(down), *map(duration, times)]
        yield step, cells, slowest["party"]


def _learned(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[Any]]]:
    """Return who learned what; values that the server sent come last."""
    groups: dict[str, list[Any]] = {}
    for row in sorted(rows, key=lambda row: row["how"] == BY_SERVER):
        groups.setdefault(f"{row['who'][:1].upper()}{row['who'][1:]}", []).append(row)
    return list(groups.items())
