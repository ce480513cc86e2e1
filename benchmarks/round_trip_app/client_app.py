"""A party that answers an empty message with an empty message."""

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.query("nothing")
def nothing(message: Message, context: Context) -> Message:
    """Reply at once."""
    return Message(RecordDict(), reply_to=message)
