"""Ridge regression on columns that nobody pools: the server's side."""
