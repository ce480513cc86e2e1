"""The mathematics of ridge regression on columns that are not pooled."""
