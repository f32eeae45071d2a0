"""Runs `tutti run` for tests, and finds what a job has left behind."""

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import uuid
from pathlib import Path

TUTTI = os.environ.get("TUTTI_LAUNCHER", "tutti")
LIMIT = 60  # seconds, for what should take much less


def state_of(pid):
    """R, S, T (stopped), Z (ended), ..."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def has_nothing_to_do(pid):
    """Whether a process sleeps, and has been told of each of its children that has ended or was stopped."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    pending = int(lines["SigPnd"], 16) | int(lines["ShdPnd"], 16)
    return lines["State"].split()[0] == "S" and not pending >> (signal.SIGCHLD - 1) & 1


def processes_with(mark):
    """Processes that have this text in their environment: pid and command line of each."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            if mark.encode() not in (folder / "environ").read_bytes():
                continue
            if state_of(folder.name) == "Z":
                continue
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has ended meanwhile
        found[int(folder.name)] = line
    return found


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def variables_of(pid):
    """The environment of a process."""
    entries = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def wait_until(holds, limit=LIMIT):
    """What holds() returns once that is true; fails the test if it never is."""
    end = time.monotonic() + limit
    while not (value := holds()):
        if time.monotonic() > end:
            raise AssertionError("waited for nothing")
        time.sleep(0.005)
    return value


def free_port():
    """A port of this machine that nobody uses; outside of those that connections get by themselves, so that none of
    another test takes it first."""
    end = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(1000):
        port = random.randrange(min(10000, end - 1000), end)
        with socket.socket() as one:
            try:
                one.bind(("", port))
            except OSError:
                continue
        return port
    raise AssertionError("no port is free")


class Job:
    """A running `tutti run`, in a folder of its own."""

    def __init__(self, *arguments, folder, env=None, limit=lambda: None, **options):
        self.folder = Path(folder)
        self.mark = f"TUTTI_TEST_JOB={uuid.uuid4().hex}"
        name, _, value = self.mark.partition("=")
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE,
                   "stderr": subprocess.PIPE, **options}
        self.process = subprocess.Popen(
            [TUTTI, "run", *[str(argument) for argument in arguments]],
            cwd=folder,
            env={**os.environ, **(env or {}), name: value},
            # Some shells have what runs in the background ignore Ctrl-C, and nohup has it ignore SIGHUP.
            preexec_fn=lambda: (signal.signal(signal.SIGINT, signal.SIG_DFL),
                                signal.signal(signal.SIGHUP, signal.SIG_DFL), limit()),
            **options,
        )

    def wait(self, limit=LIMIT):
        """What it printed and its exit code, once it has ended."""
        out, err = self.process.communicate(timeout=limit)
        return subprocess.CompletedProcess(
            self.process.args, self.process.returncode,
            (out or b"").decode(errors="surrogateescape"),
            (err or b"").decode(errors="surrogateescape"))

    def log(self, name):
        return (self.folder / "log" / "last" / f"{name}.log").read_bytes()

    def processes(self):
        return processes_with(self.mark)

    def ranks(self):
        """The first children of the wrappers, which adopt others later: {rank: pid}."""
        found = {}
        for pid in sorted(self.processes(), reverse=True):
            try:
                if b"\0rank\0" in Path(f"/proc/{parent_of(pid)}/cmdline").read_bytes():
                    found[int(variables_of(pid)["TUTTI_RANK"])] = pid
            except (OSError, KeyError):
                pass  # it has ended, or is not one yet
        return found


class JobTest(unittest.TestCase):
    """Tests that run jobs, each of which must leave no process."""

    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="tutti-launch-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.jobs = []
        self.addCleanup(self.end_jobs)

    def end_jobs(self):
        for job in self.jobs:
            job.process.kill()
            job.process.wait()
            for stream in (job.process.stdout, job.process.stderr):
                if stream:
                    stream.close()
            for pid in job.processes():
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass

    def start(self, *arguments, **options):
        self.jobs.append(Job(*arguments, folder=self.folder, **options))
        return self.jobs[-1]

    def run_job(self, *arguments, **options):
        """Runs a job to its end."""
        job = self.start(*arguments, **options)
        result = job.wait()
        self.assertEqual(job.processes(), {}, "left behind")
        result.job = job
        return result

    def script(self, text, name="rank.sh"):
        """A shell script for the ranks."""
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        path.chmod(0o755)
        return path

    def assert_gone(self, job, limit=5.0):
        """No process of the job is left after so many seconds."""
        start = time.monotonic()
        try:
            wait_until(lambda: not job.processes(), limit)
        except AssertionError:
            self.fail(f"left after {limit} s: {job.processes()}")
        return time.monotonic() - start


def main():
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
