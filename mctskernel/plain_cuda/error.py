"""What can't be written as plain CUDA C++."""

from mctskernel.core.task import TaskError


class PlainCudaError(TaskError):
    """A function that isn't covered; the message is a sentence that names the operator."""
