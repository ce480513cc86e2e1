"""Every import of a private module of Flower: a different version may change all."""
