"""The report of a result; parties need none, so its modules are imported on use."""

from __future__ import annotations

import html
import os
from pathlib import Path

from vfl_flower.server.strategy import ProtocolResult
from vfl_flower.simulation import SimulatedResult


def report(result: ProtocolResult, folder: str | os.PathLike[str]) -> Path:
    """Write the report of a result into a folder, and return the path of its page.

    Parameters
    ----------
    result : ProtocolResult
        The result of :func:`~vfl_flower.simulation.simulate`, or of a strategy's
        ``start`` in your own ServerApp.
    folder : path
        Folder to which ``report.html``, its figures, ``result.json``, ``report.md`` and
        the model are written.

    Returns
    -------
    Path
        Path of the page; ``vfl-flower report FOLDER --rebuild`` rebuilds the page.

    Raises
    ------
    OSError
        The folder cannot be written to.

    Examples
    --------
    >>> import numpy as np
    >>> from tempfile import TemporaryDirectory
    >>> import vfl_flower as vf
    >>> ids = np.arange(30)
    >>> parties = [vf.Party(np.zeros((25, 1)), ids=ids[j : j + 25]) for j in (0, 5)]
    >>> with TemporaryDirectory() as folder:
    ...     report(vf.simulate(vf.Alignment("rows"), parties), folder).name
    'report.html'
    """
    from vfl_flower.app.report.report import of_python, write_page, write_report

    results = {result.strategy.variant: result}
    write_report(Path(folder), results, *of_python(result))
    return write_page(Path(folder))


def framed(result: ProtocolResult) -> str:
    """Return the page of a result in an HTML frame, for a notebook."""
    from vfl_flower.app.report.report import page_text

    return (
        f'<iframe title="Report of the run" srcdoc="{html.escape(page_text(result))}" '
        'sandbox style="width: 100%; height: 40rem; border: 0"></iframe>'
    )


SimulatedResult.report = report
SimulatedResult._repr_html_ = framed
