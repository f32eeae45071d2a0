#!/usr/bin/env python3
"""Jobs on several hosts whose wires are slow or cut, and whose ranks are killed or stopped:
cluster_test.py MPIEXEC RANKS (see ranks.cpp) [MNIST_DIST]
"""
import contextlib
import glob
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import cluster
import cluster_faults
import own_test
import survivors_test

sys.path.insert(0, str(Path(__file__).absolute().parents[1] / "example"))

import short_mnist  # noqa: E402

SEGMENTS = "/dev/shm/*vader_segment.node[0-9]*"  # of Open MPI, named after the host


def run(hosts, mpiexec, program, what, timeout, event, seconds):
    """Starts two ranks on each host; after event() they have `seconds` to come to an end."""
    ranks = 2 * hosts.nodes
    job = hosts.start(mpiexec, ranks, [program, what, hosts.directory],
                      {"TUTTI_TIMEOUT": str(timeout)})
    try:
        texts = hosts.wait_until(ranks, 90, lambda text: True)
        assert None not in texts, f"the ranks did not begin: {texts}"
        event()
        start = time.monotonic()
        texts = hosts.wait_until(ranks, seconds, lambda text: not cluster.is_ready(text))
        return texts, time.monotonic() - start
    finally:
        job.kill()
        job.wait()


def test_hosts_have_names_and_memory_of_their_own(*_):
    show = ["sh", "-c", "hostname; stat -c %d /dev/shm; read line"]
    with cluster.Cluster(2, 1) as hosts, contextlib.ExitStack() as stack:
        shells = [stack.enter_context(subprocess.Popen(
            cluster.enter(hosts.directory, node, show), stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True)) for node in ("node1", "node2")]
        shown = [[shell.stdout.readline().strip() for _ in range(2)] for shell in shells]
    memory = {str(os.stat("/dev/shm").st_dev), *(device for _, device in shown)}
    assert [name for name, _ in shown] == ["node1", "node2"], shown
    assert len(memory) == 3, memory


def test_every_call(mpiexec, program, _, layout):
    """Each operation, and sums in lanes, with random arguments; the ranks know who shares a host."""
    hosts, slots = layout
    ranks = hosts * slots
    with cluster.Cluster(hosts, slots) as nodes:
        job = nodes.start(mpiexec, ranks, [program, "calls", nodes.directory, "1", "68"],
                          {"TUTTI_TIMEOUT": "20"})
        assert job.wait(90) == 0
        texts = nodes.outcomes(ranks)
        homes = ",".join(str(rank // slots * slots) for rank in range(ranks))
        assert texts == [f"done {homes}"] * ranks, texts


def test_training(mpiexec, _, mnist_dist, layout):
    """The ranks learn together, on digits that the program draws if there is no MNIST."""
    hosts, slots = layout
    with cluster.Cluster(hosts, slots) as nodes:
        log = os.path.join(nodes.directory, "run.json")
        options = ["--epochs", "1", "--batch-size", "16", "--json", log]
        if short_mnist.is_there():
            short_mnist.write(nodes.directory, train=6000, t10k=1000)
            options += ["--data-dir", nodes.directory]
        job = nodes.start(mpiexec, hosts * slots, [mnist_dist, *options], {"TUTTI_TIMEOUT": "20"})
        assert job.wait(120) == 0
        with open(log, encoding="utf-8") as file:
            epoch = json.loads(file.read().splitlines()[-1])
        assert epoch["world_size"] == hosts * slots and epoch["eval_accuracy"] > 0.8, epoch


def test_slow_is_not_lost(mpiexec, program, _):
    """Each call moves bytes for longer than the deadline."""
    with cluster.Cluster(2, 2) as hosts:
        hosts.rate("node1", "8mbit")
        texts, took = run(hosts, mpiexec, program, "slow", 2, lambda: None, 60)
        assert texts == ["done"] * 4, texts
        assert took > 2, f"{took:.1f} s: the wire was not slow"


def test_one_message_takes_longer_than_the_deadline(mpiexec, program, _):
    """And its bytes move all the time."""
    with cluster.Cluster(2, 1) as hosts:
        hosts.rate("node1", "8mbit")
        job = hosts.start(mpiexec, 2, [program, "broadcast", hosts.directory], {"TUTTI_TIMEOUT": "1"})
        start = hosts.wait_until(2, 90, cluster.is_ready) and time.monotonic()
        assert job.wait(30) == 0
        took = time.monotonic() - start
        assert hosts.outcomes(2) == ["done"] * 2, hosts.outcomes(2)
        assert took > 2, f"{took:.1f} s: the wire was not slow"


def named_after(mpiexec, program, what, layout, lost, number, deadline):
    """A rank gets a signal while it sends: how long the others take to name it, or None if they had done
    already."""
    nodes, slots = layout
    ranks = nodes * slots
    with cluster.Cluster(nodes, slots) as hosts:
        hosts.rate("node1", "20mbit")  # what the kernel still has of a stopped rank leaves in 0.2 s
        job = hosts.start(mpiexec, ranks, [program, what, hosts.directory],
                          {"TUTTI_TIMEOUT": str(deadline)}, stderr=subprocess.DEVNULL)
        try:
            texts = hosts.wait_until(ranks, 90, cluster.is_ready)
            os.kill(job.pid, signal.SIGSTOP)  # mpiexec, which would end all
            time.sleep(0.5)
            if "done" in hosts.outcomes(ranks):
                return None
            os.kill(int(texts[lost].split()[1]), number)
            start = time.monotonic()
            others = [rank for rank in range(ranks) if rank != lost]
            texts = hosts.wait_until(ranks, 10, lambda text: not cluster.is_ready(text), others)
            took = time.monotonic() - start
            assert all(texts[rank].startswith(f"lost rank {lost}: ") for rank in others), (took, texts)
            return took
        finally:
            job.kill()
            job.wait()


def test_who_ends_in_the_middle_of_a_long_message_is_named(mpiexec, program, _, *case):
    """A rank is killed, or stopped: the others name it within deadline and a second, the second time if
    they, or this process, had to wait for a core."""
    deadline = 1
    times = []
    while len(times) < 2:
        times.append(named_after(mpiexec, program, *case, deadline))
        if times[-1] is not None and times[-1] < deadline + 1:
            return
    assert False, times


def test_wrong_interfaces_are_refused_by_name(mpiexec, program, _):
    """Where Open MPI by itself would wait: at once, on each host."""
    has = r"lo \(127.0.0.1\), eth0 \(10.213.77.[12]\)"
    none = f"which is no interface of node[12] that is up and has an address; there are {has}"
    loopback = f"which is loopback: other hosts are not reached by it; node[12] has {has}"
    own, theirs = "TUTTI_SOCKET_IFNAME", "OMPI_MCA_btl_tcp_if_include"
    with cluster.Cluster(2, 1) as hosts:
        for value, interface, expected in (
                ("eth9", "eth0", f"{own} has 'eth9', {none}"),
                ("lo", "eth0", f"{own} has 'lo', {loopback}"),
                (None, "eth9", f"{theirs} has 'eth9', {none}"),
                (None, "lo", f"{theirs} has 'lo', {loopback}"),
                (None, "10.9.0.0/16", f"{theirs} has '10.9.0.0/16', {none}"),
                ("eth", "lo", f"{own} is 'eth' (eth0), but Open MPI was told {theirs} = 'lo': "
                              "say it once|" + f"{theirs} has 'lo', {loopback}")):
            hosts.interface = interface
            variables = {"TUTTI_TIMEOUT": "60"} | ({own: value} if value else {})
            job = hosts.start(mpiexec, 2, [program, "join", hosts.directory], variables)
            job.wait(20)  # Open MPI alone would wait for ever
            texts = hosts.outcomes(2)
            assert all(re.fullmatch(expected, text or "") for text in texts), (value, texts)
            for rank in range(2):
                os.remove(os.path.join(hosts.directory, f"rank.{rank}"))


def test_an_interface_that_leads_nowhere_is_named(mpiexec, program, _):
    """By who called over it, long before the 60 s that the program gives the others to come; mpiexec would
    end the rest then."""
    called = (r"no answer from 10.213.78.[12] to (node[12]), which has called it by eth1 \(10.213.78.[12]\) "
              "for 4.0 s: that host is off, that interface does not lead there, or a firewall is between. ")
    has = r"; \1 has lo \(127.0.0.1\), eth0 \(10.213.77.[12]\), eth1 \(10.213.78.[12]\)"
    for value, interface, setting in (
            ("eth1", None, "TUTTI_SOCKET_IFNAME is 'eth1', which is to name one that leads there"),
            (None, "eth1", "OMPI_MCA_btl_tcp_if_include is 'eth1', which is to name one that leads there")):
        # Of hosts that have asked for each other before, the kernel gives up a call sooner, before it is looked at.
        with cluster.Cluster(2, 1) as hosts:
            hosts.add_blind_alleys()
            hosts.interface = interface
            job = hosts.start(mpiexec, 2, [program, "join", hosts.directory],
                              {"TUTTI_SOCKET_IFNAME": value} if value else {}, stderr=subprocess.DEVNULL)
            try:
                texts = hosts.wait_until(2, 90, lambda text: True, [1])
            finally:
                job.kill()
                job.wait()
            assert re.fullmatch(called + setting + has, texts[1] or ""), (value, texts)


def test_who_can_still_be_reached_need_not_wait_either(mpiexec, program, _):
    """Once a rank has been called in vain: those of the caller's host, and of no other here."""
    with cluster.Cluster(2, 2) as hosts:
        hosts.add_blind_alleys()
        hosts.interface = "eth1"
        job = hosts.start(mpiexec, 4, [program, "join", hosts.directory], {}, stderr=subprocess.DEVNULL)
        try:
            texts = hosts.wait_until(4, 90, lambda text: True, [2, 3])
        finally:
            job.kill()
            job.wait()
        called, told = sorted(text or "" for text in texts[2:])[::-1]
        assert called.startswith("no answer from 10.213.78.1 to node2, "), texts
        assert re.fullmatch("lost rank 0, rank 1: did not come within [0-9.]+ s, when another rank gave up", told), texts


def test_the_interface_that_is_named_carries_all(mpiexec, program, _):
    """And is logged."""
    with cluster.Cluster(2, 1) as hosts:
        hosts.add_network()
        hosts.interface = None
        job = hosts.start(mpiexec, 2, [program, "slow", hosts.directory],
                          {"TUTTI_TIMEOUT": "20", "TUTTI_SOCKET_IFNAME": "=eth1",
                           "TUTTI_LOG": "info"}, stderr=subprocess.PIPE, text=True)
        _, said = job.communicate(timeout=60)
        assert hosts.outcomes(2) == ["done"] * 2, (hosts.outcomes(2), said)
        assert "tutti info: to other hosts by eth1 (10.213.78.1)\n" in said, said
        sent = {name: hosts.sent("node1", name) for name in ("eth0", "eth1")}
        assert sent["eth1"] > 5 << 20 > 10 * sent["eth0"], sent


def test_one_slow_link_is_slow_for_all(mpiexec, program, _):
    """Whose bytes take the longer part of what a message takes; and all agree whatever the machine has for fast:
    a busy one may never look so, but not the other way round."""
    for rate, ranks, tries in (("1gbit", 1, 1), (None, 2, 3)):
        with cluster.Cluster(3, ranks) as hosts:
            if rate:
                hosts.rate("node3", rate)
            fast = []
            while len(fast) < tries and not any(fast):
                job = hosts.start(mpiexec, 3 * ranks, [program, "wire", hosts.directory], {"TUTTI_TIMEOUT": "20"})
                assert job.wait(60) == 0
                texts = hosts.outcomes(3 * ranks)
                said = {"a fast wire" in text for text in texts}
                assert len(said) == 1, texts
                fast += said
            assert not (rate and any(fast)), texts
            print(f"a fast wire at {rate or 'the speed of memory'}: {fast[-1]}")


def run_splits(hosts, mpiexec, program):
    """What two ranks have said of a job that makes three communicators of all of them."""
    job = hosts.start(mpiexec, 2, [program, "splits", hosts.directory], {"TUTTI_TIMEOUT": "20"},
                      stderr=subprocess.PIPE, text=True)
    _, said = job.communicate(timeout=60)
    assert hosts.outcomes(2) == ["done"] * 2, (hosts.outcomes(2), said)
    return said


def test_who_cannot_be_called_is_called_once(mpiexec, program, _):
    """In each of the two sessions of the program."""
    with cluster.Cluster(2, 1) as hosts:
        hosts.forbid(1, 2)
        said = run_splits(hosts, mpiexec, program)
        assert said.count("rank 0 cannot connect to rank 1 (10.213.77.2 port ") == 2, said


def test_where_there_is_ipv6_alone_open_mpi_carries_all(mpiexec, program, _):
    with cluster.Cluster(2, 1) as hosts:
        hosts.add_network(ipv6=True)
        hosts.interface = "eth1"
        said = run_splits(hosts, mpiexec, program)
        assert said.count("rank 0 cannot connect to rank 1 (one of the two has no IPv4 address)") == 2, said


def test_one_story_on_each_side_of_a_cut(mpiexec, program, _, timeout, seconds):
    """Those who cannot reach a host name all of its ranks, and all of them say the same."""
    with cluster.Cluster(3, 2) as hosts:
        texts, took = run(hosts, mpiexec, program, "barriers", timeout,
                          lambda: hosts.cut("node3"), seconds)
        here = "lost rank 4, rank 5: no answer from the host of ranks 4, 5"
        there = ("lost rank 0, rank 1, rank 2, rank 3: "
                 "no answer from the hosts of ranks 0, 1 and of ranks 2, 3")
        assert texts == [here] * 4 + [there] * 2, (took, texts)


def test_a_loss_in_a_part_is_known_to_those_who_wait_in_the_whole(mpiexec, program, _):
    """Who has found it comes to the whole, where its neighbour has waited for it alone until then."""
    def cut_in_the_part(hosts):
        hosts.cut("node2")
        time.sleep(0.3)  # the neighbour's own deadline is to pass later
        hosts.write("come", "")

    with cluster.Cluster(2, 2) as hosts:
        texts, took = run(hosts, mpiexec, program, "parts", 2, lambda: cut_in_the_part(hosts), 10)
        here = "lost rank 2, rank 3: no answer from the host of ranks 2, 3"
        there = "lost rank 0, rank 1: no answer from the host of ranks 0, 1"
        assert texts == [here] * 2 + [there] * 2, texts
        assert took < 3.5, f"{took:.1f} s, of a deadline of 2 s"  # with a deadline more 4.8


def test_faults(mpiexec, program, _):
    """Each kind on 2x2 and 3x1; `cluster_faults.py` runs as many as it is asked for. With four jobs at a
    time the ranks may get their cores too late: what fails then has to pass alone."""
    kinds = len(cluster_faults.Trial.FAULTS)
    failed = cluster_faults.run_all(mpiexec, program, seed=1, numbers=range(2 * kinds), jobs=4)
    assert not cluster_faults.run_all(mpiexec, program, seed=1, numbers=failed, jobs=1)


def main():
    programs = sys.argv[1:3] + (sys.argv[3:] or [None])
    if not cluster.is_possible():
        print(cluster.SKIPPED)
        return
    before = set(glob.glob(SEGMENTS))
    layouts = ((2, 2), (3, 1))
    tests = [*((test,) for test in own_test.TESTS),
             (test_hosts_have_names_and_memory_of_their_own,),
             *((test_every_call, layout) for layout in layouts),
             *((test_training, layout) for layout in layouts if programs[2]),
             # The deadline of 2 s, or else 10 s without a heartbeat, and room for a busy machine.
             (test_slow_is_not_lost,),
             (test_one_message_takes_longer_than_the_deadline,),
             # The kernel of a rank that is stopped in an all_reduce receives its windows all the same, for
             # seconds on such a wire, and their senders see them move.
             *((test_who_ends_in_the_middle_of_a_long_message_is_named, *case) for case in (
                 ("broadcast", (2, 1), 0, signal.SIGKILL), ("broadcast", (2, 1), 0, signal.SIGSTOP),
                 ("all_reduce", (3, 1), 0, signal.SIGKILL),
                 # Who is not its host's leader, and sends its own share.
                 ("all_reduce", (2, 2), 1, signal.SIGKILL), ("all_reduce", (2, 2), 3, signal.SIGSTOP))),
             *survivors_test.TESTS,
             (test_wrong_interfaces_are_refused_by_name,),
             (test_an_interface_that_leads_nowhere_is_named,),
             (test_who_can_still_be_reached_need_not_wait_either,),
             (test_the_interface_that_is_named_carries_all,),
             (test_one_slow_link_is_slow_for_all,),
             (test_who_cannot_be_called_is_called_once,),
             (test_where_there_is_ipv6_alone_open_mpi_carries_all,),
             (test_one_story_on_each_side_of_a_cut, 2, 6),
             (test_one_story_on_each_side_of_a_cut, 300, 15),
             (test_a_loss_in_a_part_is_known_to_those_who_wait_in_the_whole,),
             (test_faults,)]
    for test, *arguments in tests:
        start = time.monotonic()
        test(*programs, *arguments)
        print(f"{test.__name__}{tuple(arguments)}: {time.monotonic() - start:.1f} s", flush=True)
    left = set(glob.glob(SEGMENTS)) - before
    assert not left, left


if __name__ == "__main__":
    main()
