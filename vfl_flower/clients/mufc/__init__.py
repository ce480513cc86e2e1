"""A party's side of clustering that can forget rows."""
