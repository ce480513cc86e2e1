"""Federated kernel k-means: the server's side."""
