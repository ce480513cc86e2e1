"""The expected costs of a run, who will learn what from it, and its progress."""
