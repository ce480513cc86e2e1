"""Ridge on columns that nobody pools: the server's side."""
