"""Every import of a private module of Flower: another flwr may change them all."""
