"""The mathematics of ridge regression on columns that nobody pools."""
