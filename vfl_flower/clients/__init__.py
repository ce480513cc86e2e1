"""The party's side: one module for each algorithm."""
