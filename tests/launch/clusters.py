"""Machines for jobs, which are network namespaces as far as the user may make them."""

import os
import shlex
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).absolute().parents[1] / "cluster"))

import cluster  # noqa: E402

OPTIONS = {
    "plm_rsh_no_tree_spawn": "1", "oob_tcp_if_include": "eth0", "btl_tcp_if_include": "eth0",
    "pml": "ob1", "btl": "self,vader,tcp", "osc": "^ucx", "mpi_yield_when_idle": "1",
    "btl_vader_single_copy_mechanism": "none",
}
# Slurm's srun, as far as mpiexec uses it: a daemon on each of the nodes that are named, or on all.
# What is in before.NODE is done on a node first.
SRUN = """#!/bin/sh
cd "$(dirname "$0")"
nodes=$ALL_NODES
while :; do
  case $1 in
    --nodelist=*) nodes=${1#*=}; shift;;
    --*) shift;;
    *) break;;
  esac
done
echo "$nodes" >> asked
number=0
for node in $(echo "$nodes" | tr , ' '); do
  [ ! -e down.$node ] || { echo "srun: error: $node is down" >&2; exit 1; }
done
for node in $(echo "$nodes" | tr , ' '); do
  SLURM_NODEID=$number SLURM_PROCID=$number $REMOTE_SHELL "$node" "$(cat before.$node)" "$@" &
  number=$((number + 1))
done
wait
"""

# For an agent that stands for ssh and is called AGENT MACHINE COMMAND: answers a check from here, as
# another machine that has so many processors.
ANSWER = r"""
case "$*" in
  *"'check'"*) for command; do :; done
    sh -c "$command" | sed 's/ kernel / kernel other /; s/ processors .*/ processors 1234/'; exit;;
esac
"""


def is_possible():
    return cluster.is_possible()


class Machines:
    """node1, node2, ... and one called head, where commands are given."""

    def __init__(self, tutti, nodes=2, slots=2):
        self.nodes = [f"node{i}" for i in range(1, nodes + 1)]
        self.slots = slots
        self.hosts = cluster.Cluster(nodes, slots)
        self.hosts.__enter__()
        self.folder = Path(self.hosts.directory)
        self.remote_shell = f"{os.path.abspath(cluster.__file__)} {self.folder}"
        self.tutti = self.on_head("tutti", [tutti])

    def on_head(self, name, command):
        """A program that is this command on head, with more arguments."""
        words = shlex.join(cluster.enter(self.folder, "head", command))
        return self.program(name, f'#!/bin/sh\nexec {words} "$@"\n')

    def program(self, name, text):
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)
        return str(path)

    def remove(self):
        self.hosts.remove()

    def network_of(self, node):
        return f"/run/netns/{self.hosts.prefix}-{node}"

    def variables(self):
        """What commands are given."""
        return {f"OMPI_MCA_{name}": value for name, value in OPTIONS.items()} | {
            "TMPDIR": str(self.folder)}

    def with_ssh(self):
        """Machines that are reached by what stands for ssh."""
        return self.variables() | {"OMPI_MCA_plm": "rsh",
                                   "OMPI_MCA_plm_rsh_agent": self.remote_shell}

    def in_slurm(self):
        """In a job of Slurm, which has all machines; its folder has what srun reads and writes."""
        srun = Path(self.program("slurm/srun", SRUN))
        for node in self.nodes:
            (srun.parent / f"before.{node}").touch()
        tasks = f"{self.slots}(x{len(self.nodes)})"
        return self.variables() | {
            "PATH": f"{srun.parent}:{os.environ['PATH']}", "REMOTE_SHELL": self.remote_shell,
            "ALL_NODES": ",".join(self.nodes), "SLURM_JOBID": "7", "SLURM_JOB_ID": "7",
            "SLURM_NODELIST": f"node[1-{len(self.nodes)}]",
            "SLURM_JOB_NODELIST": f"node[1-{len(self.nodes)}]",
            "SLURM_NTASKS": str(self.slots * len(self.nodes)), "SLURM_TASKS_PER_NODE": tasks}
