"""Ridge regression on columns that are not pooled: the party's side."""
