"""Times and sizes in readable units."""

from __future__ import annotations

from datetime import timedelta


def clock(seconds: float) -> str:
    """Format a time, for example as 45 s, 12:05 or 1:02:03."""
    whole = round(seconds)
    return f"{whole} s" if whole < 60 else f"{timedelta(seconds=whole)}".lstrip("0:")


def size(n_bytes: float) -> str:
    """Format a number of bytes, for example as 512 B, 1.5 kB or 27 MB."""
    for unit in ("B", "kB", "MB"):
        if float(shown := f"{n_bytes:.3g}") < 1000:
            return f"{shown} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.3g} GB"


def duration(seconds: float) -> str:
    """Format a duration, for example as 0.25 s, 12.5 s, 5 min or 2.5 h."""
    if seconds < 120:
        return f"{seconds:.{1 if seconds >= 10 else 2}f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"
