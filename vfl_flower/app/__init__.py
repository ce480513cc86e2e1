"""The Flower app: configuration, wiring, reports and commands."""
