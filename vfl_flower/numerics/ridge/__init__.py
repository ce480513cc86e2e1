"""Ridge on columns that nobody pools: its mathematics."""
