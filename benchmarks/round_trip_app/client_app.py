"""A party that answers an empty message with an empty message, in two ways."""

import empty  # noqa: F401  # declares the step
import numpy as np
from flwr.app import Context, Message, RecordDict

from vfl_flower import Party
from vfl_flower.app.register import make_client_app
from vfl_flower.party.consent import ALLOW_ALL


def load(context: Context) -> Party:
    """Return a party with one value."""
    index = int(context.node_config["partition-id"])
    return Party(np.zeros((1, 1)), index=index, consent=ALLOW_ALL)


app = make_client_app(load)


@app.query("nothing")
def stock(message: Message, context: Context) -> Message:
    """Answer Flower's ``send_and_receive``."""
    return Message(RecordDict(), reply_to=message)
