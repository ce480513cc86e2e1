"""Experiments of the papers, their baselines and data."""
