"""Runs a program into a log, within a limit, and leaves nothing of it behind."""

import contextlib
import ctypes
import os
import signal
import subprocess
import time

MOST_LOG = 256 << 10  # bytes: a log's end is kept
GRACE = 5.0  # seconds for ending what does not end
PR_SET_CHILD_SUBREAPER = 36


class Budget:
    """The seconds that all steps have together. Nothing is begun with fewer than `least`; of the
    last ones `grace` are for ending what does not end."""

    def __init__(self, seconds, least=5.0, grace=GRACE, clock=time.monotonic):
        self.grace = grace
        self._least, self._clock = least, clock
        self._begin = clock()
        self._end = self._begin + seconds

    def used(self):
        return self._clock() - self._begin

    def limit(self, seconds):
        """What a step of this limit gets; 0 if that is too little."""
        left = self._end - self._clock() - self.grace
        return min(seconds, left) if left >= self._least else 0


def adopt():
    """Makes this process the parent of what outlives its own parent below it."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children():
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as stat:
                parent = stat.read().rpartition(")")[2].split()[1]
        except OSError:  # it has ended
            continue
        if int(parent) == os.getpid():
            found.append(int(name))
    return found


def kill_children(seconds):
    """Kills what has outlived a program; False if something remains, on a GPU that hangs, say."""
    end = time.monotonic() + seconds
    while left := children():
        for child in left:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, os.WNOHANG)
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def run(command, environment, limit, log, grace):
    """(exit status, or None at the limit; a remark or ""). Takes at most limit + grace seconds."""
    try:
        with open(log, "wb") as output:
            program = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True)
        try:
            status = program.wait(limit)
        except subprocess.TimeoutExpired:
            status = None
            os.killpg(program.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):  # it is killed below
                program.wait(grace / 2)
    except OSError as error:
        return 127, str(error)
    except BaseException:  # of a signal to us, which may come as soon as there is a program
        kill_children(grace)
        raise
    gone = kill_children(grace / 2)
    program.poll()  # which notes that it was reaped
    return status, "" if gone else "something of it cannot be killed"


def shorten(log):
    """Keeps the end of a log."""
    if log.stat().st_size > MOST_LOG:
        log.write_bytes(log.read_bytes()[-MOST_LOG:])
