"""The server's end: the parties of a run, the exchange of messages, strategies."""
