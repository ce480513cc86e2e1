"""The run of a SuperLink, and the run that this process belongs to."""

from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
