"""Coresets for vertical regression and k-means: the server's side."""
