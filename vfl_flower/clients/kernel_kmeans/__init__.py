"""A party's side of federated kernel k-means."""
