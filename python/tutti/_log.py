"""The logger "tutti", to which the lines of the library go."""

from __future__ import annotations

import logging
import os

logger = logging.getLogger("tutti")

_LEVELS = {
    "error": logging.ERROR,
    "warn": logging.WARNING,
    "info": logging.INFO,
    "debug": logging.DEBUG,
}


class _Stderr(logging.Handler):
    """Prints lines as those of a C++ program, unless the application has handlers of its own."""

    def emit(self, record: logging.LogRecord) -> None:
        if logging.getLogger().handlers:
            return
        name = next((n for n, level in _LEVELS.items() if level == record.levelno), "info")
        try:
            os.write(2, f"tutti {name}: {record.getMessage()}\n".encode())
        except OSError:  # a log that cannot be written is no error
            pass


def follow_environment() -> None:
    """Lets TUTTI_LOG set the level, and has the lines printed. What is wrong with its value is said
    by the first communicator."""
    level = _LEVELS.get(os.environ.get("TUTTI_LOG", ""))
    if level is not None:
        logger.setLevel(level)
        logger.addHandler(_Stderr())
