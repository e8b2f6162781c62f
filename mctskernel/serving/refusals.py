"""Why a request is refused: a status, a sentence, and when to come again."""

from __future__ import annotations


class RefusalError(Exception):
    """A request that isn't granted. `retry_after` is in seconds, None where trying again won't help."""

    def __init__(self, status: int, sentence: str, retry_after: float | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence
        self.retry_after = retry_after


def unknown_session() -> RefusalError:
    """Of another client, or of nobody: the two look alike."""
    return RefusalError(404, "There is no such session: it was closed, or never opened by you.")


def unusable_task(sentence: str) -> RefusalError:
    """A task that can't be judged."""
    return RefusalError(422, sentence)


def failed(sentence: str) -> RefusalError:
    """A session that could not be opened, through no fault of its task that is known."""
    return RefusalError(500, sentence)


def too_much(sentence: str, retry_after: float = 1.0) -> RefusalError:
    """More than a client may have at once."""
    return RefusalError(429, sentence, retry_after)


def closing() -> RefusalError:
    """The server is about to end."""
    return RefusalError(503, "The server is closing: it takes no more work.", 30.0)


def broken(sentence: str) -> RefusalError:
    """The machine can't judge."""
    return RefusalError(503, sentence)
