"""Time round trips of empty messages, with Flower's loop and with our own in turn."""

import json
import time
from collections.abc import Callable

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


def messages(grid: Grid) -> list[Message]:
    """Return one empty message a party."""
    return [
        Message(RecordDict(), node, "query.nothing") for node in grid.get_node_ids()
    ]


def stock(grid: Grid) -> None:
    """Exchange one message with each party as Flower does, looking every 3 s."""
    replies = list(grid.send_and_receive(messages(grid)))
    assert not any(reply.has_error() for reply in replies)


def adaptive(grid: Grid) -> None:
    """Exchange one message with each party, looking after 10 ms growing to 0.5 s."""
    waiting, poll = set(grid.push_messages(messages(grid))), 0.01
    while True:
        for reply in grid.pull_messages(waiting):
            assert not reply.has_error()
            waiting.discard(reply.metadata.reply_to_message_id)
        if not waiting:
            return
        time.sleep(poll)
        poll = min(1.5 * poll, 0.5)


def seconds(exchange: Callable[[Grid], None], grid: Grid) -> float:
    """Time one exchange."""
    start = time.perf_counter()
    exchange(grid)
    return time.perf_counter() - start


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Time both in turn, after one unmeasured exchange, and print all times as JSON."""
    while len(list(grid.get_node_ids())) < context.run_config["n-parties"]:
        time.sleep(0.1)
    stock(grid)
    times: dict[str, list[float]] = {"stock": [], "adaptive": []}
    for _ in range(int(context.run_config["repeats"])):
        times["stock"].append(seconds(stock, grid))
        times["adaptive"].append(seconds(adaptive, grid))
    print("ROUND_TRIP", json.dumps(times))
