#!/usr/bin/env python3
"""Random faults in jobs: soak.py [--faults N] [--kills N] [--seed S]

A fault: a rank ends with some code or signal, is killed, or stops and is found by another; its
wrapper or the launcher is killed; the logs may not grow. The command's exit code must be right, the
right rank named, nothing lost of the logs, and no process left after five seconds. A kill: launcher,
wrapper or rank of a job whose ranks have forked, at any time since it was started; no process may be
left."""

import argparse
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from job import Job, parent_of, wait_until

LINES = 500
# Rank $1 does $2 once all ranks have printed their lines.
RANK = f"""#!/bin/bash
sleep 1000 &
(setsid sleep 1000 &)
for ((i = 0; i < {LINES}; i++)); do echo "rank $TUTTI_RANK line $i"; done
touch ready.$TUTTI_RANK
[ $TUTTI_RANK = $1 ] || exec sleep 1000
while [ ! -e go ]; do sleep 0.01; done
eval "$2"
exec sleep 1000
"""
SIGNALS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM, signal.SIGBUS,
           signal.SIGHUP, signal.SIGUSR1)
LIMIT = 5.0  # seconds after which no process is left


class Trial:
    def __init__(self, number, seed):
        self.random = random.Random(f"{seed} {number}")
        self.ranks = self.random.randint(1, 4)
        self.victim = self.random.randrange(self.ranks)
        self.folder = Path(tempfile.mkdtemp(prefix="tutti-soak-"))
        script = self.folder / "rank"
        script.write_text(RANK, encoding="utf-8")
        script.chmod(0o755)

    def start(self, action, **options):
        return Job("-n", self.ranks, "--grace", 1, "--tee", "none", "./rank", self.victim, action,
                   folder=self.folder, **options)

    def end(self, job):
        """Whether no process was left in time; what was left is ended."""
        try:
            wait_until(lambda: not job.processes(), LIMIT)
        except AssertionError:
            return f"left after {LIMIT} s: {job.processes()}"
        finally:
            for pid in [job.process.pid, *job.processes()]:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            job.wait()
            shutil.rmtree(self.folder)
        return ""

    def logged(self):
        """Whether the logs have all lines of all ranks."""
        for rank in range(self.ranks):
            path = self.folder / "log" / "last" / f"worker.{rank}.log"
            expected = "".join(f"rank {rank} line {i}\n" for i in range(LINES))
            if not path.exists() or not path.read_text().startswith(expected):
                return False
        return True

    # Faults: each gives the exit code that is due, and whether a rank is to be named.

    def fault_exit(self):
        code = self.random.randint(1, 255)
        return f"exit {code}", None, code

    def fault_signal(self):
        number = self.random.choice(SIGNALS)
        return f"kill -{int(number)} $$", None, 128 + number

    def fault_killed_rank(self):
        return "", lambda job: os.kill(job.ranks()[self.victim], signal.SIGKILL), 137

    def fault_killed_wrapper(self):
        return "", lambda job: os.kill(parent_of(job.ranks()[self.victim]), signal.SIGKILL), 137

    def fault_stopped_rank(self):
        """It is stopped, and as another would it fails when that is found out."""
        return "(sleep 0.05; kill -CONT $$) & kill -STOP $$; exit 33", None, 33

    def fault_killed_launcher(self):
        return "", lambda job: job.process.kill(), -9

    def fault_interrupted(self):
        number = self.random.choice((signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
        return "", lambda job: job.process.send_signal(number), 128 + number

    def fault_full_logs(self):
        code = self.random.randint(1, 255)
        return f"head -c 3000000 /dev/zero; exit {code}", None, code

    def run_fault(self):
        kinds = sorted(name for name in dir(self) if name.startswith("fault_"))
        kind = self.random.choice(kinds)
        action, disturb, code = getattr(self, kind)()
        options = {}
        if kind == "fault_full_logs":
            limits = (1_000_000, resource.RLIM_INFINITY)
            options["limit"] = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        job = self.start(action, **options)
        told = ""
        try:
            wait_until(lambda: all((self.folder / f"ready.{r}").exists() for r in range(self.ranks)))
            if disturb:
                wait_until(self.logged)
            begun = time.monotonic()
            (self.folder / "go").touch()
            if disturb:
                disturb(job)
            result = job.wait(20)
            took = time.monotonic() - begun
            if result.returncode != code:
                told += f"exit code {result.returncode}, not {code}; "
            named = f"worker {self.victim} (rank {self.victim} of {self.ranks})"
            if code > 0 and kind != "fault_interrupted":
                if f"{named} on" not in result.stderr:
                    told += f"{named} is not named: {result.stderr}; "
                last = f"  | rank {self.victim} line {LINES - 1}\n"
                if kind != "fault_full_logs" and last not in result.stderr:
                    told += f"its last lines are not shown: {result.stderr}; "
            if kind != "fault_killed_launcher":
                wait_until(self.logged, LIMIT)
            if kind == "fault_full_logs" and result.stderr.count("File too large") != 1:
                told += f"full logs are not told once: {result.stderr}; "
        except (AssertionError, subprocess.TimeoutExpired) as error:
            told += f"{error!r}; "
            took = 0.0
        told += self.end(job)
        return kind.removeprefix("fault_"), told, took

    def run_kill(self):
        job = self.start("")
        whom = self.random.choice(("launcher", "wrapper", "rank"))
        time.sleep(self.random.uniform(0, 0.08))
        try:
            victim = self.find(job, whom)
            if victim:
                os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:
            victim = None
        if not victim:  # too early for that one
            job.process.kill()
            whom = "launcher"
        return whom, self.end(job), 0.0

    def find(self, job, whom):
        if whom == "launcher":
            return job.process.pid
        ranks = job.ranks()
        if not ranks:
            return None
        pid = self.random.choice(sorted(ranks.values()))
        return pid if whom == "rank" else parent_of(pid)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--trial", type=int, help="run this one alone")
    arguments = parser.parse_args()
    failed = 0
    counts = {}
    for kind, number in (("fault", arguments.faults), ("kill", arguments.kills)):
        trials = range(number) if arguments.trial is None else [arguments.trial]
        for trial in trials if number else ():
            what, told, took = getattr(Trial(trial, f"{kind} {arguments.seed}"), f"run_{kind}")()
            counts.setdefault(f"{kind} {what}", []).append(took)
            if told:
                failed += 1
                print(f"{kind} {trial} ({what}): {told}", flush=True)
    for what, times in sorted(counts.items()):
        longest = f", at most {max(times):.2f} s to the end" if max(times) > 0 else ""
        print(f"{len(times):5} x {what}{longest}")
    print(f"{failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
