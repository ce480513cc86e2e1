"""A party's side of each algorithm, as a module or a subpackage."""
