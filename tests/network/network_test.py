#!/usr/bin/env python3
"""Slow wires and cut cables between hosts: network_test.py MPIEXEC RANKS (see ranks.cpp)."""
import glob
import os
import subprocess
import sys
import time

import cluster


SEGMENTS = "/dev/shm/*vader_segment.node[0-9]*"  # of Open MPI, named after the host


def outcomes(directory, ranks):
    """What each rank has to say; None as long as it says nothing."""
    texts = []
    for rank in range(ranks):
        try:
            with open(os.path.join(directory, f"rank.{rank}"), encoding="utf-8") as file:
                texts.append(file.read())
        except FileNotFoundError:
            texts.append(None)
    return texts


def wait_until(directory, ranks, seconds, holds):
    """The outcomes once all of them are as wanted, or after `seconds`; how long that took."""
    start = time.monotonic()
    while True:
        texts = outcomes(directory, ranks)
        took = time.monotonic() - start
        if all(text and holds(text) for text in texts) or took > seconds:
            return texts, took
        time.sleep(0.02)


def run(hosts, mpiexec, program, what, timeout, event, seconds):
    """Starts two ranks on each host; after event() they have `seconds` to come to an end."""
    for old in glob.glob(os.path.join(hosts.directory, "rank.*")):
        os.remove(old)
    ranks = 2 * hosts.nodes
    job = hosts.start(mpiexec, ranks, [program, what, hosts.directory],
                      {"TUTTI_TIMEOUT": str(timeout)})
    try:
        texts, _ = wait_until(hosts.directory, ranks, 90, lambda text: True)
        assert None not in texts, f"the ranks did not begin: {texts}"
        event()
        return wait_until(hosts.directory, ranks, seconds, lambda text: text != "ready")
    finally:
        job.kill()
        job.wait()


def test_slow_is_not_lost(mpiexec, program):
    """Each call moves bytes for longer than the deadline."""
    with cluster.Cluster(2, 2) as hosts:
        hosts.rate("node1", "10mbit")
        texts, took = run(hosts, mpiexec, program, "slow", 2, lambda: None, 60)
        assert texts == ["done"] * 4, texts
        assert took > 2, f"{took:.1f} s: the wire was not slow"


def test_one_story_on_each_side_of_a_cut(mpiexec, program, timeout, seconds):
    """Those who cannot reach a host name all of its ranks, and all of them say the same."""
    with cluster.Cluster(3, 2) as hosts:
        texts, took = run(hosts, mpiexec, program, "barriers", timeout,
                          lambda: hosts.cut("node3"), seconds)
        here = "lost rank 4, rank 5: no answer from the host of ranks 4, 5"
        there = ("lost rank 0, rank 1, rank 2, rank 3: "
                 "no answer from the hosts of ranks 0, 1 and of ranks 2, 3")
        assert texts == [here] * 4 + [there] * 2, (took, texts)


def test_hosts_that_fail_half_way_leave_nothing():
    class Failing(cluster.Cluster):
        def plug(self, name, number):
            super().plug(name, number)
            if name == "node1":
                raise InterruptedError

    hosts = Failing(2, 1)
    try:
        with hosts:
            assert False, "must not come here"
    except InterruptedError:
        pass
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert f"{hosts.prefix}-" not in left, left
    assert not os.path.exists(hosts.directory)


def main():
    mpiexec, program = sys.argv[1:]
    if not cluster.is_possible():
        print("SKIPPED: no network namespaces here (they need root and iproute2): "
              "nothing was tested")
        return
    before = set(glob.glob(SEGMENTS))
    test_hosts_that_fail_half_way_leave_nothing()
    # The deadline of 2 s, or else 10 s without a heartbeat, and room for a busy machine.
    for test, *arguments in ((test_slow_is_not_lost,),
                             (test_one_story_on_each_side_of_a_cut, 2, 6),
                             (test_one_story_on_each_side_of_a_cut, 300, 15)):
        start = time.monotonic()
        test(mpiexec, program, *arguments)
        print(f"{test.__name__}{tuple(arguments)}: {time.monotonic() - start:.1f} s", flush=True)
    left = set(glob.glob(SEGMENTS)) - before
    assert not left, left


if __name__ == "__main__":
    main()
