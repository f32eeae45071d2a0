#!/usr/bin/env python3
"""Random faults of hosts that are network namespaces, in the middle of random collectives.

    cluster_faults.py MPIEXEC RANKS [--trials N] [--first K] [--fault F] [--seed S] [--jobs J]
    cluster_faults.py MPIEXEC RANKS --trial K [--seed S]       that one alone

RANKS is the program of ranks.cpp, which checks every result, and makes long sums in lanes where hosts
have several ranks. A trial is a function of the seed and
its number: a layout, a deadline, and who is killed, stopped or cut off, and when; with --fault, one
of Trial.FAULTS, those with others are left out. Every survivor
must say within the deadline and a second who was lost, all of them and nobody else; nobody may
hang. Who loses ranks of a part (of a split) names those, and then all, when it asks the whole; if they
are stopped, the whole may take one more deadline, since they might compute.
Open MPI 4.1 gives a job up from within a survivor whose message to the dead was under way, or whose
connection to them broke off before it was answered: such a survivor, known by Open MPI's last words, is
counted if its process is gone, and in a quarter of the trials forgiven; but not if memory was gone that
MPI was to send or to fill.
Ended by SIGTERM, it takes its hosts along.
"""
import argparse
import concurrent.futures
import contextlib
import errno
import itertools
import os
import random
import re
import signal
import subprocess
import sys
import time

import cluster

LAYOUTS = ((2, 2), (3, 1), (2, 1), (3, 2))  # hosts, ranks of each
START_LIMIT = 90.0  # seconds
GRACE = 1.0  # seconds beyond the deadline
PATIENCE = 10.0  # seconds, to tell late from never
GIVEN_UP = re.compile(r"pml_ob1_sendreq\.c:\d+ FATAL$|TCP ACK is neither SUCCESS nor ERR", re.MULTILINE)
TO_FILE = 'exec "$0" "$@" 2> {}.$OMPI_COMM_WORLD_RANK'  # since mpiexec, which would show it, is stopped


class Trial:
    """What happens to whom."""

    FAULTS = ("kill a rank", "kill a host's ranks", "crash a host", "cut a cable", "stop a rank",
              "stop a host's ranks", "kill a host's ranks in turn")

    def __init__(self, seed, number):
        draw = random.Random(f"{seed} {number}")
        self.number = number
        self.name = f"--seed {seed} --trial {number}"
        self.fault = self.FAULTS[number % len(self.FAULTS)]
        self.hosts, self.slots = LAYOUTS[number // len(self.FAULTS) % len(LAYOUTS)]
        self.calls = draw.randrange(1 << 31)
        self.deadline = draw.choice((1, 1, 2))
        self.moment = draw.random() * 0.3
        self.victim = draw.randrange(self.hosts * self.slots)
        self.node = self.victim // self.slots
        self.gap = draw.random() * 0.5  # between ranks that are killed in turn

    def describe(self):
        whom = f"rank {self.victim}" if self.fault.endswith("a rank") else f"node{self.node + 1}"
        return (f"{self.name}: {self.hosts}x{self.slots}, {self.fault} ({whom}) after "
                f"{self.moment:.3f} s, deadline {self.deadline} s" +
                (f", {self.gap:.3f} s apart" if self.fault.endswith("in turn") else ""))

    def lost(self):
        """Whom each survivor has to name."""
        everybody = set(range(self.hosts * self.slots))
        there = {self.victim} if self.fault.endswith("a rank") else {
            rank for rank in everybody if rank // self.slots == self.node}
        named = {rank: there for rank in everybody - there}
        if self.fault == "cut a cable":  # whom it has cut off survives, too
            named.update({rank: everybody - there for rank in there})
        return named


def run(trial, mpiexec, program, output=subprocess.DEVNULL):
    """What was wrong, one line each; the longest wait in seconds; whom Open MPI has ended."""
    ranks = trial.hosts * trial.slots
    with cluster.Cluster(trial.hosts, trial.slots) as hosts:
        errors = f"{hosts.directory}/errors"
        job = hosts.start(mpiexec, ranks, ["sh", "-c", TO_FILE.format(errors), program, "calls",
                                           hosts.directory, str(trial.calls)],
                          {"TUTTI_TIMEOUT": str(trial.deadline)}, stderr=output)
        try:
            texts = hosts.wait_until(ranks, START_LIMIT, lambda text: True)
            if None in texts or not all(text.startswith("ready ") for text in texts):
                return [f"the ranks did not begin: {texts}"], 0.0, set()
            pids = [int(text.split()[1]) for text in texts]
            own = ",".join(str(rank // trial.slots * trial.slots) for rank in range(ranks))
            if {text.split()[2] for text in texts} != {own}:
                return [f"the ranks do not see the hosts: {texts}"], 0.0, set()
            os.kill(job.pid, signal.SIGSTOP)  # mpiexec, which would end all
            time.sleep(trial.moment)
            waited = {rank: waited_for_a_core(pids[rank]) for rank in trial.lost()}
            struck = time.monotonic()
            strike(trial, hosts, pids)
            texts = hosts.wait_until(ranks, trial.deadline + GRACE + PATIENCE,
                                     lambda text: not text.startswith("ready "), trial.lost())
            ended = {rank for rank in trial.lost() if (texts[rank] or "").startswith("ready ")
                     and open_mpi_gave_up(read(f"{errors}.{rank}")) and not is_alive(pids[rank])}
            if output is None:
                sys.stderr.write("".join(read(f"{errors}.{rank}") for rank in range(ranks)))
            complaints, longest = judge(trial, texts, struck, waited, ended)
            for rank in sorted(trial.lost().keys() - ended):
                if (texts[rank] or "").startswith("ready "):
                    complaints.append(f"rank {rank} {what_it_does(pids[rank])}; last words: "
                                      f"{read(f'{errors}.{rank}')[-300:]!r}")
            return complaints, longest, ended
        finally:
            job.kill()
            job.wait()


def strike(trial, hosts, pids):
    of_node = pids[trial.node * trial.slots:(trial.node + 1) * trial.slots]
    if trial.fault == "kill a rank":
        os.kill(pids[trial.victim], signal.SIGKILL)
    elif trial.fault == "stop a rank":
        os.kill(pids[trial.victim], signal.SIGSTOP)
    elif trial.fault == "kill a host's ranks":
        for number in (signal.SIGSTOP, signal.SIGKILL):  # so that none tells of another's end
            for pid in of_node:
                os.kill(pid, number)
    elif trial.fault == "kill a host's ranks in turn":
        for pid in of_node:
            with contextlib.suppress(ProcessLookupError):  # it has found the loss of the first, and ended
                os.kill(pid, signal.SIGKILL)
            time.sleep(trial.gap)
    elif trial.fault == "crash a host":
        hosts.crash(f"node{trial.node + 1}")
    elif trial.fault == "cut a cable":
        hosts.cut(f"node{trial.node + 1}")
    else:
        for pid in of_node:
            os.kill(pid, signal.SIGSTOP)


def read(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def open_mpi_gave_up(said):
    """Whether it has ended the process that has `said` that, for the loss of another one."""
    return GIVEN_UP.search(said) is not None and os.strerror(errno.EFAULT) not in said


def what_it_does(pid):
    """Of a process that does not go on."""
    if not is_alive(pid):
        return "has ended"
    with open(f"/proc/{pid}/syscall", encoding="ascii") as file:
        call = file.read().split()[0]
    return "runs" if call == "running" else f"is in the system call {call}"


def is_alive(pid):
    """It is gone, or has ended and been waited for by nobody yet."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


def waited_for_a_core(pid):
    """For how long, in nanoseconds."""
    with open(f"/proc/{pid}/schedstat", encoding="ascii") as file:
        return int(file.read().split()[1])


def ranks_of(text):
    return {int(each) for each in text.split(",") if each}


def lost_in_a_part(trial, texts):
    """Whether a survivor has lost somebody there first."""
    stories = [texts[rank] for rank in trial.lost() if (texts[rank] or "").startswith("lost ")]
    return any(len(ranks_of(text.split(" ", 6)[4])) < trial.hosts * trial.slots for text in stories)


def judge(trial, texts, struck, waited, ended):
    complaints, longest, stories = [], 0.0, set()
    in_turn = trial.fault == "kill a host's ranks in turn"
    first = {trial.node * trial.slots} if in_turn else set()
    limit = trial.deadline + GRACE
    # Who has given up a rank in a part comes to the whole, where one that may compute has a deadline of
    # its own: so have those who waited there for who waited in the part.
    if trial.fault.startswith("stop ") and lost_in_a_part(trial, texts):
        limit += trial.deadline
    for rank, lost in sorted(trial.lost().items()):
        if rank in ended:
            continue
        text = texts[rank] or ""
        if not text.startswith("lost "):
            complaints.append(f"rank {rank} hangs" if text.startswith("ready ") else
                              f"rank {rank}: {text}")
            continue
        _, when, wait, named, members, named_to_all, reason = text.split(" ", 6)
        took = int(when) * 1e-9 - struck
        late = (int(wait) - waited[rank]) * 1e-9  # a busy machine's fault
        longest = max(longest, took - late)
        for names, of in ((named, ranks_of(members)), (named_to_all, lost)):
            # Who waits for a message of a stopped rank cannot tell those beside it from ranks that compute.
            # A rank that lives a little longer may tell of the end of the first: that is the story then.
            enough = ((in_turn or trial.fault == "stop a host's ranks") and
                      set() < ranks_of(names) <= lost & of and first & of <= ranks_of(names))
            # Whom Open MPI has ended is lost, too, and its neighbour may see that first.
            enough = enough or set() < ranks_of(names) <= ended
            # Who has heard of the loss first leaves the parts that it was in, too.
            enough = enough or (names is named and not lost & of and "destroyed its communicator" in reason)
            if ranks_of(names) - ended != lost & of and not enough:
                complaints.append(f"rank {rank} names {names}, but lost {sorted(lost & of)}: {reason}")
        if in_turn:
            stories.add(named_to_all)
        if took > limit + late:
            complaints.append(f"rank {rank} noticed after {took:.2f} s, of which it waited "
                              f"{late:.2f} s for a core: {reason}")
    if len(stories) > 1:
        complaints.append(f"there is more than one story: {sorted(stories)}")
    return complaints, longest


def run_all(mpiexec, program, seed, numbers, jobs):
    """The numbers of the trials that failed."""
    trials = [Trial(seed, number) for number in numbers]
    failed, given_up = [], []
    longest = dict.fromkeys((trial.fault for trial in trials), 0.0)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        output = None if len(trials) == 1 else subprocess.DEVNULL
        outcomes = pool.map(lambda trial: run(trial, mpiexec, program, output), trials)
        for trial, (complaints, wait, ended) in zip(trials, outcomes):
            longest[trial.fault] = max(longest[trial.fault], wait)
            if complaints:
                failed.append(trial.number)
            if ended:
                given_up.append(trial.number)
                print(f"{trial.describe()}\n  Open MPI ended {sorted(ended)}", flush=True)
            if complaints or len(trials) == 1:
                print("\n  ".join([trial.describe(), *complaints]), flush=True)
    print(f"{len(failed)} of {len(trials)} trials failed, in {len(given_up)} Open MPI ended a survivor; the "
          "longest waits: " + ", ".join(f"{fault} {wait:.2f} s" for fault, wait in longest.items()))
    return failed if len(given_up) <= max(1, len(trials) // 4) else failed + given_up


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mpiexec")
    parser.add_argument("ranks")
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--fault", choices=Trial.FAULTS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--trial", type=int)
    arguments = parser.parse_args()
    if not cluster.is_possible():
        print(cluster.SKIPPED)
        return 0
    cluster.remove_when_terminated()
    wanted = (number for number in itertools.count(arguments.first)
              if arguments.fault in (None, Trial(arguments.seed, number).fault))
    numbers = ([arguments.trial] if arguments.trial is not None else
               itertools.islice(wanted, arguments.trials))
    return 1 if run_all(arguments.mpiexec, arguments.ranks, arguments.seed, numbers, arguments.jobs) else 0


if __name__ == "__main__":
    sys.exit(main())
