"""Ridge regression on columns that are not pooled: the server's side."""
