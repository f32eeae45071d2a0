"""What ends this process is told to the other ranks, which may wait for it: an exception's type and
text."""

from __future__ import annotations

import atexit
import os
import sys
from typing import Optional

from tutti import _core

_followed: Optional[int] = None  # the process of multiprocessing whose end will be told


def follow_interpreter() -> None:
    """Closes what communicates at the interpreter's exit, of which an exception that nobody caught
    may be the reason."""
    atexit.register(lambda: _core.close_all(what_ended()))


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
