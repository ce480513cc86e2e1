"""Products of private matrices on shares of two parties, with the help of a dealer."""
