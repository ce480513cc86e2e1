"""The server's side: the parties of a run, the exchange of messages, and strategies."""
