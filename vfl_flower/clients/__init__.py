"""The party's side of each algorithm, in a module or a folder."""
