"""What becomes of a result outside a run: its report, MLflow, TensorBoard.

These functions import what they need when they are called: a party's process, which
imports the package for each message, needs none of it.
"""

from __future__ import annotations

import html
import os
from collections.abc import Iterator
from pathlib import Path

from vfl_flower.protocol.strategy import ProtocolResult


def report(result: ProtocolResult, folder: str | os.PathLike[str]) -> Path:
    """Write the report of a result into a folder, and return its page.

    Parameters
    ----------
    result : ProtocolResult
        Of :func:`~vfl_flower.simulation.simulate`, or of a strategy's ``start`` in your
        own ServerApp.
    folder : path
        Created if it does not exist; it then has ``report.html``, the figures as SVG,
        PNG, JSON and CSV, ``result.json``, ``report.md`` and the model.

    Returns
    -------
    Path
        The page, which ``vfl-flower report FOLDER --rebuild`` makes again.

    Raises
    ------
    OSError
        The folder cannot be written to.
    """
    from vfl_flower.app.report import of_python, write_page, write_report

    results = {result.strategy.variant: result}
    write_report(Path(folder), results, *of_python(result))
    return write_page(Path(folder))


def framed(result: ProtocolResult) -> str:
    """Return the page of a result in a frame of its own, for a notebook."""
    from vfl_flower.app.report import page_text

    return (
        f'<iframe title="Report of the run" srcdoc="{html.escape(page_text(result))}" '
        'sandbox style="width: 100%; height: 40rem; border: 0"></iframe>'
    )


def log_to_mlflow(result: ProtocolResult) -> None:
    """Log the settings, metrics and costs of a result to the active run of MLflow.

    MLflow starts a run where none is active. Metrics are logged by iteration, and those
    of an iterative solver by its steps.

    Parameters
    ----------
    result : ProtocolResult
        The result.

    Raises
    ------
    ImportError
        MLflow is not installed.
    """
    try:
        import mlflow
    except ImportError:
        raise ImportError("log_to_mlflow needs the package mlflow") from None
    from vfl_flower.app.report import changed, of_python

    named, command = of_python(result)
    mlflow.log_params(changed(result.strategy) | named | {"command": command})
    for name, step, value in _points(result):
        mlflow.log_metric(name, value, step=step)


def log_to_tensorboard(result: ProtocolResult, folder: str | os.PathLike[str]) -> None:
    """Write the metrics and costs of a result where TensorBoard reads them.

    Parameters
    ----------
    result : ProtocolResult
        The result.
    folder : path
        TensorBoard's ``--logdir``, or a folder in it.

    Raises
    ------
    ImportError
        TensorBoard is not installed.
    """
    try:
        from tensorboard.summary import Writer
    except ImportError:
        raise ImportError("log_to_tensorboard needs the package tensorboard") from None
    writer = Writer(os.fspath(folder))
    for name, step, value in _points(result):
        writer.add_scalar(name, value, step)
    writer.close()


def _points(result: ProtocolResult) -> Iterator[tuple[str, int, float]]:
    """Yield name, step and value of all metrics, traces and costs."""
    for iteration, metrics in result.train_metrics_clientapp.items():
        for name, value in metrics.items():
            yield name, iteration, float(str(value))
    for name, points in result.traces.items():
        for step, (_, _, value) in enumerate(points, start=1):
            yield f"trace/{name}", step, value
    for name, value in result.ledger.to_dict().items():
        if isinstance(value, int | float):
            yield f"cost/{name}", 0, float(value)
