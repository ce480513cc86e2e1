"""Federated doubly stochastic kernel learning: the server's side."""
