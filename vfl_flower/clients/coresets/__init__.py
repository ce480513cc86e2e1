"""A party's side of the coresets for vertical regression and k-means."""
