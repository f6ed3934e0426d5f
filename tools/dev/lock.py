"""A lock on a directory that stays from run to run, so that one process at a time works there."""

import contextlib
import fcntl


class Held(Exception):
    """Another process holds the lock."""


@contextlib.contextmanager
def locked(path, wait=False):
    """Holds the lock of the directory at `path`, which need not exist: a file beside it.

    If another process has it, waits for that one's end, or raises Held. The kernel frees the lock of
    a process that dies; the file stays, because removing it would free the lock of who opened it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{path}.lock", "w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as error:
            raise Held(f"another run works in {path}: wait for its end") from error
        yield
