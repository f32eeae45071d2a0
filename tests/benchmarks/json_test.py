#!/usr/bin/env python3
"""The JSON Lines of scale_sim and cluster_bench: json_test.py FOLDER (of the programs) MPIEXEC"""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).absolute().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "cluster"))

import cluster  # noqa: E402

PREDICTED = {"what", "hosts", "ranks", "bytes", "us", "bound_us", "messages_per_rank",
             "bytes_per_rank", "state_per_process", "checked"}
CHECKED = {"all_reduce", "one-way broadcast"}
MEASURED = {"hosts", "ranks_per_host", "op", "bytes", "congestion", "peer", "algorithm", "us", "wire_us",
            "checked"}
WAYS = {("all_reduce", "tutti", "default"), ("all_reduce", "tutti", "bf16"),
        ("all_reduce", "openmpi", "default"), ("barrier", "tutti", "default"),
        ("barrier", "openmpi", "default")}
OF_ALL = {(op, "openmpi-all", algorithm) for op in ("all_reduce", "barrier")
          for algorithm in ("default", "linear", "recursive_doubling")}
GBPS = 1.0


class Lines(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.file = Path(folder.name) / "lines.json"

    def lines(self, command):
        """What it has written, after it has ended well."""
        result = subprocess.run(command, capture_output=True, text=True, timeout=100)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return [json.loads(line) for line in self.file.read_text(encoding="utf-8").splitlines()]

    def test_of_what_is_predicted(self):
        lines = self.lines([FOLDER / "scale_sim", "--hosts", "3", "--ranks", "2", "--largest", "262144",
                            "--latency-us", "10", "--gbps", "100", "--json", self.file])
        self.assertEqual({line["what"] for line in lines},
                         {"agreement", "all_reduce", "one-way broadcast", "broadcast", "reduce",
                          "start-up", "split", "leaving", "process killed", "host crashed"})
        for line in lines:
            with self.subTest(line=line):
                self.assertEqual(set(line), PREDICTED)
                self.assertEqual((line["hosts"], line["ranks"]), (3, 2))
                self.assertLessEqual(0, line["bound_us"])
                self.assertLessEqual(line["bound_us"], line["us"])
                self.assertGreater(line["us"], 10 if line["what"] != "leaving" else 0)
                self.assertEqual(line["checked"], line["what"] in CHECKED)
        sizes = [line["bytes"] for line in lines if line["what"] == "all_reduce"]
        self.assertEqual((sizes[0], sizes[-1]), (8, 1 << 18))
        crashed = next(line for line in lines if line["what"] == "host crashed")
        self.assertLess(crashed["us"], 5e6 + 1e6)  # its deadline and a second

    def test_of_what_is_measured(self):
        """On two hosts that are pretended."""
        program = [str(FOLDER / "cluster_bench"), "--ops", "all_reduce,barrier", "--sizes", "8,1K",
                   "--seconds", "0.02", "--gbps", str(GBPS), "--peers", "openmpi,openmpi-all",
                   "--json", str(self.file)]
        hosts = [["-n", "1", "env", f"TUTTI_HOST_ID={name}", *program] for name in ("a", "b")]
        lines = self.lines([MPIEXEC, "--oversubscribe", "--bind-to", "none", *hosts[0], ":", *hosts[1]])
        own = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text(encoding="ascii").strip()
        self.check_measured(lines, {(2, 1)}, WAYS | OF_ALL, own)

    @unittest.skipUnless(cluster.is_possible(), cluster.SKIPPED)
    def test_of_what_is_measured_between_namespaces(self):
        """By the script that makes them."""
        command = [sys.executable, ROOT / "benchmarks/cluster_bench.py", "--layouts", "2x1,2x2", "--rate",
                   f"{GBPS:g}gbit", "--congestion", "reno", "--bench", FOLDER / "cluster_bench", "--mpiexec",
                   MPIEXEC, "--limit", "40", "--json", self.file]
        options = ["--ops", "all_reduce,barrier", "--sizes", "8,1K", "--seconds", "0.02", "--peers", "openmpi"]
        self.check_measured(self.lines(command + options), {(2, 1), (2, 2)}, WAYS, "reno")

    def check_measured(self, lines, layouts, expected, congestion):
        """Of an all_reduce and a barrier on two hosts."""
        ways = {(line["hosts"], line["ranks_per_host"], line["op"], line["peer"], line["algorithm"])
                for line in lines}
        for layout in layouts:
            self.assertLessEqual({(*layout, *way) for way in expected}, ways)
        for line in lines:
            with self.subTest(line=line):
                self.assertEqual(set(line), MEASURED)
                self.assertIn((line["hosts"], line["ranks_per_host"]), layouts)
                self.assertTrue(line["checked"])
                self.assertEqual(line["congestion"], congestion)
                self.assertIn(line["bytes"], (4, 8, 512, 1024) if line["op"] == "all_reduce" else (0,))
                # All bytes of two hosts once in each direction.
                self.assertAlmostEqual(line["wire_us"], line["bytes"] * 8e-3 / GBPS, places=3)
                self.assertTrue(0.1 < line["us"] < 1e6)


if __name__ == "__main__":
    MPIEXEC = sys.argv.pop()
    FOLDER = Path(sys.argv.pop())
    unittest.main()
