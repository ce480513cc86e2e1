"""A Flower app with FedAvg, and with a strategy of vfl_flower beside it."""
