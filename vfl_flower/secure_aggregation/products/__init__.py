"""Products of private matrices, computed by two parties on shares, with a dealer."""
