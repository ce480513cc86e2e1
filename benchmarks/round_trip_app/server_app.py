"""Time round trips of empty messages, with Flower's loop and with ours in turn."""

import json
import time
from collections.abc import Callable

from empty import nothing
from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from vfl_flower.server.exchange import Exchange
from vfl_flower.server.parties import Parties

app = ServerApp()


def seconds(exchange: Callable[[], object]) -> float:
    """Time one exchange."""
    start = time.perf_counter()
    exchange()
    return time.perf_counter() - start


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Time both in turn, after an unmeasured ``hello``, and print all times as JSON."""
    parties = Parties(Exchange(grid), seed=0, n_parties=3)

    def stock() -> None:
        messages = [Message(RecordDict(), p.node_id, "query.nothing") for p in parties]
        for reply in grid.send_and_receive(messages):
            assert not reply.has_error()

    def ours() -> None:
        parties.ask(nothing)

    times: dict[str, list[float]] = {"send_and_receive": [], "Parties.ask": []}
    for _ in range(int(context.run_config["repeats"])):
        for exchange, measured in zip((stock, ours), times.values(), strict=True):
            measured.append(seconds(exchange))
    print("ROUND_TRIP", json.dumps(times), flush=True)
