"""The run of a SuperLink, and the identity of this process's run."""

from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
