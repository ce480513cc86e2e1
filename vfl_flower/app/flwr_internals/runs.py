"""Flower's record of a run, and the identity of this process's run."""

from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
