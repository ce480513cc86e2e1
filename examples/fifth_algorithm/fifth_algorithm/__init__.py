"""Principal components of split rows, from a masked sum of Gram matrices."""
