"""A party's side of clusters that can forget."""
