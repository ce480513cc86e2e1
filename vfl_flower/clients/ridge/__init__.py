"""A party's side of ridge regression on columns that are not pooled."""
