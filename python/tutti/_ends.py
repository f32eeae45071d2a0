"""What ends this process is told to the other ranks, which may wait for it: an exception's type and
text."""

from __future__ import annotations

import atexit
import os
import sys
from typing import Optional

from tutti import _core, progress
from tutti.errors import MismatchError, PeerLost

_followed: Optional[int] = None  # the process of multiprocessing whose end will be told


def follow_interpreter() -> None:
    """Closes what communicates at the interpreter's exit, of which an exception that nobody caught
    may be the reason."""
    atexit.register(close_all, os.getpid())


def close_all(process: int) -> None:
    """Closes what communicates. `tutti run` hears before the other ranks whether an exception is the
    reason, be it this rank's own or the end of another, but in a forked child of `process`. Of a
    sys.exit() the interpreter tells nobody."""
    error = what_ended()
    if error is not None and os.getpid() == process:
        progress.tell_launcher("ends for another" if _follows_from_others(error) else "is failing")
    _core.close_all(error)


def _follows_from_others(error: Optional[BaseException]) -> bool:
    """Whether the end of another rank, or what it asked for, is behind an exception. PyTorch makes
    one of its own of a PeerLost in a backward pass, with its text."""
    while error is not None:
        if isinstance(error, (PeerLost, MismatchError)) or "lost rank " in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def what_ended() -> Optional[BaseException]:
    """The exception that nobody caught, and that ends the interpreter, if one does."""
    return getattr(sys, "last_value", None)


def follow_process() -> None:
    """The same for a process of multiprocessing: that catches every exception itself, and a forked
    one runs no exit handlers. Called whenever a communicator is made."""
    global _followed
    process = sys.modules.get("multiprocessing.process")
    if process is None or process.parent_process() is None or _followed == os.getpid():
        return
    from multiprocessing import util

    _followed = os.getpid()
    # Forked inside an except clause, it goes on handling its parent's exception.
    util.Finalize(None, _end_process, args=(sys.exc_info()[1],), exitpriority=100)


def _end_process(handled_before: Optional[BaseException]) -> None:
    error = sys.exc_info()[1]
    if error is not None and error is not handled_before:
        _core.close_all(error)
