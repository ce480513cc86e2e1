"""What tests of federated kernel k-means share that look at what a server has."""

import numpy as np
from uniformity import uniform


def sent(grid, action, name, party):
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
    assert len(data) >= 160
    return uniform(np.concatenate([data >> 4, data & 15]), 16, alarm=5e-10)
