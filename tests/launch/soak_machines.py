"""Random faults in jobs on machines, which are network namespaces: part of soak.py."""

import os
import signal
import subprocess

import clusters
import job
from soak import LIMIT, Fault, Trial, run_trials

START_LIMIT = 25.0  # seconds
SKIPPED = 77  # as ctest knows it
# In place of ssh, called AGENT MACHINE COMMAND: a machine is not reached, or not any more once it
# has been checked.
AGENT = """#!/bin/sh
case "$1 $*" in
  "$UNREACHED "*"'check'"*) [ ! "$CHECKED" ] || exec $REMOTE_SHELL "$@";;
  "$UNREACHED "*) ;;
  *) exec $REMOTE_SHELL "$@";;
esac
echo "no route to $1" >&2
exit 255
"""


class MachinesTrial(Trial):
    KILLED = (*Trial.KILLED, "mpiexec", "orted")
    LATEST_KILL = 0.8

    def __init__(self, machines, number, seed):
        self.machines = machines
        self.disk = None
        super().__init__(number, seed)

    def place_ranks(self):
        slots = {node: self.random.randint(1, 2) for node in self.machines.nodes}
        self.hosts = [node for node in slots for _ in range(slots[node])]
        self.options = ["--hosts", ",".join(f"{node}:{number}" for node, number in slots.items())]

    def start(self, action, env=None, **options):
        return super().start(action, env={**self.machines.with_ssh(), **(env or {})}, **options)

    def remove_folder(self):
        if self.disk:
            subprocess.run(["umount", "--lazy", self.disk], check=True)
        super().remove_folder()

    def find(self, started, whom):
        if whom not in ("mpiexec", "orted"):
            return super().find(started, whom)
        found = self.processes_of(started, whom)
        return self.random.choice(found) if found else None

    def limit_of_kill(self, started, whom):
        """Of a daemon that dies before the ranks start mpiexec may say nothing: a deadline does."""
        early = len(started.ranks()) < len(self.hosts)
        return START_LIMIT if whom == "orted" and early else LIMIT

    def processes_of(self, started, program):
        return sorted(pid for pid, line in started.processes().items()
                      if os.path.basename(line.split(" ")[0]) == program)

    def orted_of(self, started, node):
        for pid in self.processes_of(started, "orted"):
            if os.path.samefile(f"/proc/{pid}/ns/net", self.machines.network_of(node)):
                return pid
        raise AssertionError(f"no orted on {node}")

    def fault_killed_wrapper(self):
        """Its log, of which it would have sent the end, is on its machine."""
        fault = super().fault_killed_wrapper()
        del fault.said[1:]
        return fault

    # Of a daemon's end the launcher hears by its ranks, and by mpiexec, in any order; of mpiexec's, too.
    ORPHANED = r"tutti run: .* on {} failed after the process of Open MPI that had started it: signal 15"

    def fault_killed_mpiexec(self):
        return Fault(137, disturb=lambda started: os.kill(self.find(started, "mpiexec"), 9),
                     said=[r"tutti run: mpiexec, which .* failed: signal 9 \(SIGKILL\)\n"],
                     instead=[(self.ORPHANED.format(r"\S+"), 143)])

    def fault_killed_orted(self):
        node = self.random.choice(self.machines.nodes)
        return Fault(143, disturb=lambda started: os.kill(self.orted_of(started, node), 9),
                     said=[self.ORPHANED.format(node)],
                     instead=[(r"tutti run: mpiexec, which .* failed: exit code (\d+)\n", None)])

    def unreached(self, **variables):
        agent = self.machines.program("agent", AGENT)
        return {"OMPI_MCA_plm_rsh_agent": agent, "REMOTE_SHELL": self.machines.remote_shell,
                **variables}

    def fault_ssh_that_fails(self):
        node = self.random.choice(self.machines.nodes)
        return Fault(2, said=[f"tutti run: {node}: no route to {node}\n$"], starts=False,
                     options={"env": self.unreached(UNREACHED=node)})

    def fault_ssh_that_fails_later(self):
        node = self.random.choice(self.machines.nodes)
        return Fault(2, said=["failed: it did not start", f"no route to {node}"], starts=False,
                     options={"env": self.unreached(UNREACHED=node, CHECKED="1")})

    def fault_full_logs(self):
        self.disk = self.folder / "log"
        self.disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", self.disk], check=True)
        code = self.random.randint(1, 255)
        # Once all has been written that is to be kept.
        return Fault(code, f"head -c 3000000 /dev/zero; exit {code}", disturb=lambda _: None,
                     said=[self.name(self.victim), "No space left on device"])


def run(arguments):
    if not clusters.is_possible():
        print("SKIPPED: no network namespaces here (they need root and iproute2)")
        return SKIPPED
    machines = clusters.Machines(job.TUTTI, arguments.machines)
    signal.signal(signal.SIGTERM, lambda *_: exit(1))
    job.TUTTI = machines.tutti
    try:
        return run_trials(arguments, lambda number, seed: MachinesTrial(machines, number, seed))
    finally:
        machines.remove()
