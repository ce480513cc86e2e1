"""What a run will cost and reveal, from runs on random rows, and how far it is."""
