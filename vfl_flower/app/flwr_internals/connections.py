"""Functions with which ``flwr`` reads the connections of its ``config.toml``."""

from flwr.cli.flower_config import read_superlink_connection
