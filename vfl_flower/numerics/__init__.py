"""The mathematics of the papers: NumPy in, NumPy out, no files and no network."""
