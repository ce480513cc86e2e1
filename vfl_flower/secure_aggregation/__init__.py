"""Sums that hide their terms: masks, key agreement, fixed point, sealed messages."""
