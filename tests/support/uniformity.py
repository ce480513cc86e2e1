"""The chi-square test for uniformity that all tests use."""

import numpy as np
from scipy.stats import chi2


def uniform(cells, n_cells=256, alarm=1e-6):
    """Return whether the counts of cells could be uniform: `alarm` in each tail."""
    counts = np.bincount(np.ravel(cells), minlength=n_cells)
    expected = counts.sum() / n_cells
    assert expected > 5
    statistic = ((counts - expected) ** 2).sum() / expected
    low, high = chi2.ppf(alarm, n_cells - 1), chi2.isf(alarm, n_cells - 1)
    return bool(low < statistic < high)


def octets(elements, of=None):
    elements = np.asarray(elements)
    rows = np.frombuffer(elements.tobytes(), np.uint8)
    return rows.reshape(-1, elements.itemsize)[:, :of]
