"""Shows how far a program is: a bar on the terminal, and what `tutti run` draws of its ranks."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import time

from tutti import _core

_BETWEEN = 0.2  # seconds


def stdout_is_terminal() -> bool:
    """Whether what this rank prints goes to a terminal."""
    if not sys.stdout.isatty() or _core.launched_by() != "mpiexec":
        return sys.stdout.isatty()
    # Open MPI gives each rank a pseudo-terminal and copies what it reads there to its own stdout.
    try:
        descriptor = os.open(f"/proc/{os.getppid()}/fd/1", os.O_WRONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.isatty(descriptor)
    finally:
        os.close(descriptor)


def _launchers_pipe() -> int:
    """From which `tutti run` reads what the rank says of its progress; -1 if there is none."""
    try:
        number = int(os.environ.get("TUTTI_PROGRESS_FD", -1))
        return number if stat.S_ISFIFO(os.fstat(number).st_mode) else -1
    except (OSError, ValueError):
        return -1


def tell_launcher(line: str) -> None:
    """Writes a line to `tutti run`, if it has started this process."""
    pipe = _launchers_pipe()
    if pipe >= 0:
        with contextlib.suppress(OSError):
            os.write(pipe, f"{line}\n".encode())


class Progress:
    """What one rank shows while it works; five times a second at most."""

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._on_terminal = stdout_is_terminal()
        self._pipe = _launchers_pipe()
        self._shown = 0.0

    def show(self, done: int, of: int, per_second: float) -> None:
        """`done` of so many steps, and how many units are done a second."""
        if (self._pipe < 0 and not self._on_terminal) or time.monotonic() - self._shown < _BETWEEN:
            return
        self._shown = time.monotonic()
        if self._pipe >= 0:  # tutti run draws its own line
            tell_launcher(f"{done}/{of}, {per_second:.0f} {self._unit}/s")
        if self._on_terminal:
            bar = "=" * (40 * done // max(of, 1))
            print(f"\r[{bar:<40}] {done}/{of}  {per_second:.0f} {self._unit}/s ", end="", flush=True)

    def clear(self) -> None:
        """Takes the bar away, before a line is printed."""
        if self._on_terminal:
            print("\r\033[K", end="")
