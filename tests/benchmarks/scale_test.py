#!/usr/bin/env python3
"""What scale_sim predicts of many hosts keeps to its aims: scale_test.py FOLDER (of the program)"""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

LATENCY_US = 10
DEADLINE_US = 5e6


class Predictions(unittest.TestCase):
    """Of hosts of 8 ranks, 10 us and 100 Gbit/s."""

    def predict(self, hosts, largest):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "lines.json"
            subprocess.run([FOLDER / "scale_sim", "--hosts", str(hosts), "--ranks", "8",
                            "--latency-us", str(LATENCY_US), "--gbps", "100", "--overhead-ns", "500",
                            "--timeout-ms", str(int(DEADLINE_US / 1e3)), "--largest", str(largest),
                            "--json", file], check=True, stdout=subprocess.DEVNULL)
            lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        return {(line["what"], line["bytes"]): line for line in lines}

    def test_1024_hosts(self):
        lines = self.predict(1024, 1024)
        self.assertLessEqual(lines["agreement", 0]["us"], 15 * LATENCY_US)
        self.assertLessEqual(lines["all_reduce", 1024]["us"], 25 * LATENCY_US)
        self.assertTrue(lines["all_reduce", 1024]["checked"])
        self.assertLessEqual(lines["host crashed", 0]["us"], DEADLINE_US + 3e6)
        # A process that ends is noticed without a deadline.
        self.assertLessEqual(lines["process killed", 0]["us"], 1e6)

    def test_long_sums(self):
        """1024 hosts and 256 MiB take minutes, and 10 GiB; docs/performance.md has them."""
        longest = self.predict(64, 64 << 20)["all_reduce", 64 << 20]
        self.assertLessEqual(longest["us"], 1.15 * longest["bound_us"])


if __name__ == "__main__":
    FOLDER = Path(sys.argv.pop())
    unittest.main()
