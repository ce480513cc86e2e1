"""What tests of federated kernel k-means share that look at what a server has."""

import numpy as np
from scipy.stats import chi2


def sent(grid, action, name, party):
    """Return what one party sent under a name, message by message."""
    entries = [
        entry for entry in grid.transcript if entry.action == action and entry.up
    ]
    return [
        entry.values[name]
        for entry in entries
        if entry.party == party and name in entry.values
    ]


def nibbles_are_uniform(words):
    """All half bytes by chi-square over 16 bins; false-alarm rate 1e-9, two-sided."""
    data = np.frombuffer(words.tobytes(), dtype=np.uint8)
    counts = np.bincount(np.concatenate([data >> 4, data & 15]), minlength=16)
    expected = 2 * len(data) / 16
    assert expected >= 20
    statistic = ((counts - expected) ** 2).sum() / expected
    return bool(chi2.isf(1 - 5e-10, 15) < statistic < chi2.isf(5e-10, 15))
