#!/usr/bin/env python3
"""Random faults in jobs: soak.py [--machines 2] [--faults N] [--kills N] [--seed S]

A fault: a rank ends with some code or signal, is killed, or stops and is found by another; its
wrapper or the launcher is killed; the logs may not grow; and on several machines those of
soak_machines.py. The command's exit code must be right, the right rank named, nothing lost of the
logs, and no process left after five seconds. A kill: launcher, wrapper, rank, mpiexec or one of its
daemons, of a job whose ranks have forked, at any time since it was started; no process may be left."""

import argparse
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Optional

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


@dataclass
class Fault:
    code: int  # that is due
    action: str = ""  # what the victim does, as a shell reads it
    disturb: Optional[Callable] = None  # what is done to the job
    said: list = field(default_factory=list)  # what its stderr has once, as regular expressions
    # Or else this is said once, and the code is this or, if it is None, what the expression's group has.
    instead: list = field(default_factory=list)
    options: dict = field(default_factory=dict)  # of the job
    starts: bool = True  # whether the ranks do


class Trial:
    """On this machine."""

    KILLED = ("launcher", "wrapper", "rank")
    LATEST_KILL = 0.08  # seconds after the start

    def __init__(self, number, seed):
        self.number = number
        self.random = random.Random(f"{seed} {number}")
        self.place_ranks()
        self.victim = self.random.randrange(len(self.hosts))
        self.folder = Path(tempfile.mkdtemp(prefix="tutti-soak-"))
        script = self.folder / "rank"
        script.write_text(RANK, encoding="utf-8")
        script.chmod(0o755)

    def place_ranks(self):
        """Decides the machine of each rank, and the options that say so."""
        self.hosts = [os.uname().nodename] * self.random.randint(1, 4)
        self.options = ["-n", len(self.hosts)]

    def start(self, action, **options):
        return Job(*self.options, "--grace", 1, "--tee", "none", "./rank", self.victim, action,
                   folder=self.folder, **options)

    def end(self, job, limit=LIMIT):
        """Whether no process was left in time; what was left is ended."""
        try:
            wait_until(lambda: not job.processes(), limit)
        except AssertionError:
            return f"left after {limit} s: {job.processes()}"
        finally:
            for pid in [job.process.pid, *job.processes()]:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            job.wait()
            self.remove_folder()
        return ""

    def remove_folder(self):
        shutil.rmtree(self.folder)

    def ready(self):
        return all((self.folder / f"ready.{rank}").exists() for rank in range(len(self.hosts)))

    def logged(self):
        """Whether the logs have all lines of all ranks."""
        for rank in range(len(self.hosts)):
            path = self.folder / "log" / "last" / f"worker.{rank}.log"
            expected = "".join(f"rank {rank} line {i}\n" for i in range(LINES))
            if not path.exists() or not path.read_text().startswith(expected):
                return False
        return True

    def name(self, rank):
        return rf"worker {rank} \(rank {rank} of {len(self.hosts)}\) on {self.hosts[rank]} failed"

    def of_victim(self, code, action="", disturb=None):
        """It is named, with its last line."""
        said = [self.name(self.victim), rf"\n  \| rank {self.victim} line {LINES - 1}\n"]
        return Fault(code, action, disturb, said)

    def fault_exit(self):
        code = self.random.randint(1, 255)
        return self.of_victim(code, f"exit {code}")

    def fault_signal(self):
        number = self.random.choice(SIGNALS)
        return self.of_victim(128 + number, f"kill -{int(number)} $$")

    def fault_killed_rank(self):
        return self.of_victim(137, disturb=lambda job: os.kill(job.ranks()[self.victim], 9))

    def fault_killed_wrapper(self):
        return self.of_victim(137, disturb=lambda job: os.kill(parent_of(job.ranks()[self.victim]), 9))

    def fault_stopped_rank(self):
        """It is stopped, and as another would it fails when that is found out."""
        return self.of_victim(33, "(sleep 0.05; kill -CONT $$) & kill -STOP $$; exit 33")

    def fault_killed_launcher(self):
        return Fault(-9, disturb=lambda job: job.process.kill())

    def fault_interrupted(self):
        number = self.random.choice((signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
        return Fault(128 + number, disturb=lambda job: job.process.send_signal(number))

    def fault_full_logs(self):
        code = self.random.randint(1, 255)
        limits = (1_000_000, resource.RLIM_INFINITY)
        return Fault(code, f"head -c 3000000 /dev/zero; exit {code}",
                     said=[self.name(self.victim), "File too large"],
                     options={"limit": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limits)})

    def run_fault(self):
        kinds = sorted(name for name in dir(self) if name.startswith("fault_"))
        kind = kinds[self.number % len(kinds)]
        fault = getattr(self, kind)()
        job = self.start(fault.action, **fault.options)
        took = 0.0
        told = ""
        try:
            if fault.starts:
                wait_until(self.ready)
            if fault.starts and fault.disturb:
                wait_until(self.logged)
            begun = time.monotonic()
            if fault.disturb:
                fault.disturb(job)
            (self.folder / "go").touch()
            result = job.wait(20)
            took = time.monotonic() - begun
            told += self.judge(fault, result)
            if fault.starts:
                wait_until(self.logged, LIMIT)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            told += f"{error!r}; "
        told += self.end(job)
        return kind.removeprefix("fault_"), told, took

    def judge(self, fault, result):
        told = ""
        for text, code in fault.instead:
            found = re.findall(text, result.stderr)
            if len(found) == 1 and result.returncode == (int(found[0]) if code is None else code):
                return ""
        if result.returncode != fault.code:
            told += f"exit code {result.returncode}, not {fault.code}; "
        for text in fault.said:
            if len(re.findall(text, result.stderr)) != 1:
                told += f"not said once: {text}; "
        return f"{told}{result.stderr}" if told else ""

    def run_kill(self):
        job = self.start("")
        whom = self.random.choice(self.KILLED)
        time.sleep(self.random.uniform(0, self.LATEST_KILL))
        limit = self.limit_of_kill(job, whom)
        try:
            victim = self.find(job, whom)
            if victim:
                os.kill(victim, signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError):
            victim = None
        if not victim:  # too early for that one
            job.process.kill()
            whom = "launcher"
        return whom, self.end(job, limit), 0.0

    def limit_of_kill(self, job, whom):
        return LIMIT

    def find(self, job, whom):
        if whom == "launcher":
            return job.process.pid
        ranks = job.ranks()
        if not ranks:
            return None
        pid = self.random.choice(sorted(ranks.values()))
        return pid if whom == "rank" else parent_of(pid)


def run_trials(arguments, trial_of):
    """The exit code. `trial_of` makes the trial of a number and a seed."""
    failed = 0
    times = {}
    for kind, number in (("fault", arguments.faults), ("kill", arguments.kills)):
        for trial in range(arguments.first, arguments.first + number):
            what, told, took = getattr(trial_of(trial, f"{kind} {arguments.seed}"), f"run_{kind}")()
            times.setdefault(f"{kind} {what}", []).append(took)
            if told:
                failed += 1
                print(f"{kind} {trial} ({what}): {told}", flush=True)
    for what, each in sorted(times.items()):
        longest = f", at most {max(each):.2f} s to the end" if max(each) > 0 else ""
        print(f"{len(each):5} x {what}{longest}")
    print(f"{failed} failed")
    return 1 if failed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machines", type=int, default=1, help="network namespaces; 1: none")
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--first", type=int, default=0, help="the number of the first trial")
    arguments = parser.parse_args()
    if arguments.machines == 1:
        return run_trials(arguments, Trial)
    import soak_machines

    return soak_machines.run(arguments)


if __name__ == "__main__":
    sys.exit(main())
