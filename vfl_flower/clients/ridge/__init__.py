"""Ridge on columns that nobody pools: the party's side."""
