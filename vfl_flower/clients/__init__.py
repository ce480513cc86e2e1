"""The party's side: a module or folder for each algorithm."""
