"""Federated clusters that can forget: the server's side."""
