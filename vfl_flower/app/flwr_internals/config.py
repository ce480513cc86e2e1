"""Functions with which Flower reads a run config and a node config."""

from flwr.common.config import flatten_dict, parse_config_args
