"""A Flower app with FedAvg, and a strategy of vfl_flower beside it."""
