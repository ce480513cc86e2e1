"""Functions with which Flower makes a bundle of an app."""

from flwr.cli.build import build_fab_from_disk, build_fab_from_files
