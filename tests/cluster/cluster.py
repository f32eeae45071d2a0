#!/usr/bin/env python3
"""Hosts for mpiexec on this machine: network namespaces joined by a bridge. Needs root and iproute2.

As a program it is mpiexec's remote shell: cluster.py DIRECTORY NODE COMMAND...
"""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

NETWORK = "10.213.77"
SECOND_NETWORK = "10.213.78"
MTU = "9000"
SKIPPED = ("SKIPPED: no network namespaces here (they need root and iproute2): "
           "nothing was tested")
ENTER = ('hostname "$0"; mount --bind "$1" /etc/hosts && mount -t tmpfs tmpfs /dev/shm || exit 1; '
         'shift; exec "$@"')


def is_possible():
    """Whether namespaces can be made here."""
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
        return False
    name = f"tutti-{os.getpid()}-probe"
    if subprocess.run(["ip", "netns", "add", name], stderr=subprocess.DEVNULL).returncode != 0:
        return False
    made = subprocess.run(["ip", "-n", name, "link", "add", "br0", "type", "bridge"],
                          stderr=subprocess.DEVNULL).returncode == 0
    subprocess.run(["ip", "netns", "del", name], check=True)
    return made


def congestion_controls():
    """What this machine's kernel lets network namespaces have for TCP: not all that it has itself."""
    with open("/proc/sys/net/ipv4/tcp_allowed_congestion_control", encoding="ascii") as file:
        return file.read().split()


def is_ready(text):
    """That is what a rank says first (ranks.cpp)."""
    return text.startswith("ready ")


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True)


def remove_when_terminated():
    """From now on SIGTERM ends this process, and takes its hosts along."""
    def end(*_):
        Cluster.none_any_more = True
        for each in list(Cluster.there):
            each.remove()
        os._exit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)


class Cluster:
    """`nodes` hosts node1, node2, ... and one called head, where mpiexec runs."""

    numbers = threading.Lock()
    made = 0  # by this process
    there = []  # of these
    none_any_more = False

    def __init__(self, nodes, slots):
        self.nodes = nodes
        self.interface = "eth0"  # that Open MPI is told; None: it is not
        self.directory = tempfile.mkdtemp(prefix="tutti-cluster-")
        with Cluster.numbers:
            Cluster.made += 1
            self.prefix = f"tutti-{os.getpid()}-{Cluster.made}"
        self.switch = f"{self.prefix}-switch"
        self.write("prefix", self.prefix)
        names = [f"node{i}" for i in range(1, nodes + 1)]
        self.write("etc-hosts", "127.0.0.1 localhost\n" + f"{NETWORK}.254 head\n" +
                   "".join(f"{NETWORK}.{i} {name}\n" for i, name in enumerate(names, 1)))
        self.write("hostfile", "".join(f"{name} slots={slots}\n" for name in names))

    def write(self, name, text):
        with open(os.path.join(self.directory, name), "w", encoding="utf-8") as file:
            file.write(text)

    def __enter__(self):
        Cluster.there.append(self)
        try:
            self.add_space(self.switch)
            self.add_bridge("br0")
            self.plug("head", 254)
            for number in range(1, self.nodes + 1):
                self.plug(f"node{number}", number)
        except BaseException:
            self.remove()
            raise
        return self

    @staticmethod
    def add_space(name):
        if Cluster.none_any_more:
            raise InterruptedError("this process is ending")
        ip("netns", "add", name)

    def add_bridge(self, name):
        ip("-n", self.switch, "link", "add", name, "type", "bridge")
        ip("-n", self.switch, "link", "set", name, "up")

    def plug(self, name, number):
        space = f"{self.prefix}-{name}"
        self.add_space(space)
        ip("-n", space, "link", "set", "lo", "up")
        ip("-n", self.switch, "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns",
           space)
        ip("-n", self.switch, "link", "set", name, "mtu", MTU, "master", "br0", "up")
        ip("-n", space, "addr", "add", f"{NETWORK}.{number}/24", "dev", "eth0")
        ip("-n", space, "link", "set", "eth0", "mtu", MTU, "up")

    def add_network(self, ipv6=False):
        """Gives the nodes a second interface, eth1, which joins them to each other as well, by a bridge of its own:
        by the same one eth1 would answer for the address of eth0, and lose its longer packets. With addresses of
        IPv6 alone, if that is wanted."""
        self.add_bridge("br1")
        for number in range(1, self.nodes + 1):
            space = f"{self.prefix}-node{number}"
            ip("-n", self.switch, "link", "add", f"second{number}", "type", "veth", "peer", "name",
               "eth1", "netns", space)
            ip("-n", self.switch, "link", "set", f"second{number}", "master", "br1", "up")
            address = [f"fd00:213::{number}/64", "nodad"] if ipv6 else [f"{SECOND_NETWORK}.{number}/24"]
            ip("-n", space, "addr", "add", *address, "dev", "eth1")
            ip("-n", space, "link", "set", "eth1", "up")

    def add_blind_alleys(self):
        """Gives each node an interface eth1 of the same network, which leads to no other node."""
        for number in range(1, self.nodes + 1):
            space = f"{self.prefix}-node{number}"
            ip("-n", self.switch, "link", "add", f"alley{number}", "type", "veth", "peer", "name", "eth1",
               "netns", space)
            ip("-n", self.switch, "link", "set", f"alley{number}", "up")
            ip("-n", space, "addr", "add", f"{SECOND_NETWORK}.{number}/24", "dev", "eth1")
            ip("-n", space, "link", "set", "eth1", "up")

    def forbid(self, name, other):
        """Nothing of TCP leaves a node for another one between ports of the kernel's choice. Those
        at which Open MPI's ranks listen are lower."""
        chosen = "32768-60999"
        ip("-n", f"{self.prefix}-node{name}", "rule", "add", "to", f"{NETWORK}.{other}", "ipproto",
           "tcp", "sport", chosen, "dport", chosen, "prohibit")

    def sent(self, name, interface):
        """Bytes that have left a node by one of its interfaces."""
        shown = subprocess.run(["ip", "-n", f"{self.prefix}-{name}", "-s", "-j", "link", "show",
                                interface], capture_output=True, text=True, check=True)
        return json.loads(shown.stdout)[0]["stats64"]["tx"]["bytes"]

    def __exit__(self, *_):
        self.remove()

    def remove(self):
        """Ends what runs on the hosts, and them."""
        listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
        names = [line.split()[0] for line in listed.stdout.splitlines()]
        spaces = [name for name in names if name.startswith(f"{self.prefix}-")]
        for space in spaces:
            kill_all(space)
        for space in spaces:
            subprocess.run(["ip", "netns", "del", space], check=False)
        shutil.rmtree(self.directory, ignore_errors=True)
        if self in Cluster.there:
            Cluster.there.remove(self)

    def rate(self, name, rate, burst="256k"):
        """Limits a node's link in both directions; so many bytes pass at once after a silence."""
        for space, device in ((f"{self.prefix}-{name}", "eth0"), (self.switch, name)):
            subprocess.run(["tc", "-n", space, "qdisc", "add", "dev", device, "root", "tbf", "rate",
                            rate, "burst", burst, "latency", "20ms"], check=True)

    def congestion(self, name):
        """What controls the congestion of TCP's connections on all hosts, of those made from now on."""
        for host in ("head", *(f"node{number}" for number in range(1, self.nodes + 1))):
            ip("netns", "exec", f"{self.prefix}-{host}", "sh", "-c",
               'echo "$0" >/proc/sys/net/ipv4/tcp_congestion_control', name)

    def crash(self, name):
        """A node loses its power: nothing comes from it any more, and its processes are gone."""
        self.cut(name)
        kill_all(f"{self.prefix}-{name}")

    def cut(self, name):
        """Pulls a node's cable: nobody is told."""
        ip("-n", self.switch, "link", "set", name, "down")

    def outcomes(self, ranks):
        """What each rank has to say (ranks.cpp); None as long as it says nothing."""
        texts = []
        for rank in range(ranks):
            try:
                with open(os.path.join(self.directory, f"rank.{rank}"), encoding="utf-8") as file:
                    texts.append(file.read())
            except FileNotFoundError:
                texts.append(None)
        return texts

    def wait_until(self, ranks, seconds, holds, of=None):
        """The outcomes once those of all ranks (or of those in `of`) are as wanted, or after
        `seconds`."""
        end = time.monotonic() + seconds
        while True:
            texts = self.outcomes(ranks)
            awaited = texts if of is None else [texts[rank] for rank in of]
            if all(text and holds(text) for text in awaited) or time.monotonic() > end:
                return texts
            time.sleep(0.02)

    def start(self, mpiexec, ranks, program, environment, **options_of_popen):
        """mpiexec on head, as many ranks on a node as it has slots."""
        options = {
            "plm": "rsh", "plm_rsh_agent": f"{os.path.abspath(__file__)} {self.directory}",
            "plm_rsh_no_tree_spawn": "1", "orte_default_hostfile": f"{self.directory}/hostfile",
            "oob_tcp_if_include": "eth0", "pml": "ob1",
            "btl": "self,vader,tcp", "osc": "^ucx", "hwloc_base_binding_policy": "none",
            "btl_vader_single_copy_mechanism": "none", "mpi_yield_when_idle": "1",
        }
        if self.interface:
            options["btl_tcp_if_include"] = self.interface
        command = enter(self.directory, "head", [mpiexec, "--enable-recovery", "--oversubscribe"])
        for key, value in options.items():
            command += ["--mca", key, value]
        for key, value in environment.items():
            command += ["-x", f"{key}={value}"]
        environ = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                       TMPDIR=self.directory)
        return subprocess.Popen(command + ["-n", str(ranks), *program], env=environ,
                                **options_of_popen)


def kill_all(space):
    """Kills the processes of a namespace."""
    pids = subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True, check=False)
    for pid in pids.stdout.split():
        try:
            os.kill(int(pid), 9)
        except ProcessLookupError:
            pass


def enter(directory, name, command):
    """`command`, to be run on a host."""
    with open(os.path.join(directory, "prefix"), encoding="utf-8") as file:
        prefix = file.read()
    return ["ip", "netns", "exec", f"{prefix}-{name}", "unshare", "--mount", "--uts", "sh", "-c",
            ENTER, name, os.path.join(directory, "etc-hosts"), *command]


if __name__ == "__main__":
    os.environ["TMPDIR"] = sys.argv[1]
    shell = enter(sys.argv[1], sys.argv[2], ["sh", "-c", " ".join(sys.argv[3:])])
    os.execvp(shell[0], shell)
