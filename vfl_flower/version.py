"""The version of the package, which every layer may import."""

__version__ = "0.1.0"
