#!/usr/bin/env python3
"""A link between hosts that are network namespaces: how much of the wire it uses, and how soon a
worker and a server hear that the cable between them is cut. Needs root and iproute2.

link_network_test.py PS_LINK_BENCH
"""
import os
import re
import subprocess
import sys
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "network"))
from cluster import Cluster, enter, is_possible  # noqa: E402

RATE = 200  # Mbit/s: what a busy machine can do, too


class LinkNetworkTest(unittest.TestCase):
    def setUp(self):
        self.cluster = Cluster(2, 1)
        self.cluster.__enter__()
        self.processes = []
        self.addCleanup(self.end)
        for node in ("node1", "node2"):
            self.cluster.rate(node, f"{RATE}mbit")

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

    def test_the_wire_is_used_and_sixteen_bits_are_half(self):
        rows = {}
        for wire in ("f32", "f16"):
            server, worker = self.start_pair(wire, 25)
            out, err = worker.communicate(timeout=60)
            self.assertEqual((worker.returncode, err), (0, ""))
            self.assertEqual(server.wait(timeout=20), 0)
            figures = re.findall(r"(\w+) \w+: ([\d.]+) MB/s .* (\d+) rows/s", out)
            self.assertEqual(len(figures), 2, out)
            for name, megabytes, count in figures:
                self.assertGreater(float(megabytes) * 8, 0.8 * RATE, out)
                rows[name, wire] = int(count)
        for name in ("push", "look_up"):
            self.assertGreater(rows[name, "f16"], 1.7 * rows[name, "f32"])

    def test_both_sides_hear_of_a_cut_cable(self):
        server, worker = self.start_pair("f32", 2000)
        time.sleep(2)  # in the middle of the transfer
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
