"""The Flower apps of the example, which know vfl_flower's algorithms and one more."""

from flwr.app import Context

from fifth_algorithm.pca import FederatedPCA
from vfl_flower.app.client_app import load_from_context
from vfl_flower.app.register import make_client_app
from vfl_flower.app.server_app import app as server_app
from vfl_flower.party.party import Party
from vfl_flower.strategies import add_algorithm

add_algorithm("pca", FederatedPCA)


def load(context: Context) -> Party:
    """Load a party; a function of this module, so that Ray's processes import it."""
    return load_from_context(context)


client_app = make_client_app(load)

__all__ = ["client_app", "server_app"]
