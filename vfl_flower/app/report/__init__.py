"""The report of a run: its numbers, its page and its figures."""
