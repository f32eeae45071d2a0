#!/usr/bin/env python3
"""A link between hosts that are network namespaces: how many bytes of the wire rows take, and how
soon a worker and a server hear that the cable between them is cut. Needs root and iproute2.

link_network_test.py PS_LINK_BENCH
"""
import os
import re
import subprocess
import sys
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "cluster"))
from cluster import Cluster, enter, is_possible  # noqa: E402


class LinkNetworkTest(unittest.TestCase):
    def setUp(self):
        self.cluster = Cluster(2, 1)
        self.cluster.__enter__()
        self.processes = []
        self.addCleanup(self.end)

    def start(self, node, *arguments):
        command = enter(self.cluster.directory, node, [PROGRAM, *map(str, arguments)])
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.processes.append(process)
        return process

    def end(self):
        self.cluster.remove()  # kills what is left
        for process in self.processes:
            process.communicate()

    def start_pair(self, wire, batches):
        place = Path(self.cluster.directory) / wire
        server = self.start("node1", "serve", place, wire)
        deadline = time.monotonic() + 20
        while not place.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        return server, self.start("node2", "work", place, wire, batches)

    def moved_bytes(self):
        """What node2 has received and sent."""
        read = enter(self.cluster.directory, "node2", ["grep", "eth0:", "/proc/net/dev"])
        fields = subprocess.run(read, capture_output=True, text=True, check=True).stdout.split()
        return int(fields[1]), int(fields[9])

    def test_sixteen_bits_are_half_of_the_wire(self):
        moved = {}
        for wire in ("f32", "f16"):
            before = self.moved_bytes()
            server, worker = self.start_pair(wire, 25)
            out, err = worker.communicate(timeout=60)
            self.assertEqual((worker.returncode, err), (0, ""))
            self.assertEqual(server.wait(timeout=20), 0)
            self.assertEqual(len(re.findall(r"\d+ rows/s", out)), 2, out)
            moved[wire] = [after - had for after, had in zip(self.moved_bytes(), before)]
        for f32, f16 in zip(moved["f32"], moved["f16"]):  # rows looked up, rows pushed
            self.assertGreater(f32, 1.7 * f16)
            self.assertLess(f32, 1.1 * 25 * 13312 * 16 * 4)

    def test_both_sides_hear_of_a_cut_cable(self):
        for node in ("node1", "node2"):
            self.cluster.rate(node, "200mbit")
        before = self.moved_bytes()
        server, worker = self.start_pair("f32", 2000)
        while self.moved_bytes()[1] < before[1] + (4 << 20):  # then it is in the middle of it
            self.assertIsNone(worker.poll())
        self.cluster.cut("node2")
        start = time.monotonic()
        _, err = worker.communicate(timeout=30)
        self.assertIn("server 0: its host cannot be reached", err)
        server.wait(timeout=30)
        self.assertLess(time.monotonic() - start, 12)


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    if not is_possible():
        sys.exit("SKIPPED: no network namespaces here")
    unittest.main()
