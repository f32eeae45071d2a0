#!/usr/bin/env python3
"""Checks, on CPUs, the program that measures how soon a killed rank is named: killed_rank_test.py
FOLDER PROGRAM, where FOLDER is gpu-check's."""

import json
import subprocess
import sys
import unittest

sys.path.insert(0, sys.argv[1])

import plan
import results


class KilledRank(unittest.TestCase):
    def test_it_is_named_and_that_is_measured(self):
        for ranks in (2, 3):
            program = subprocess.run([sys.argv[2], "--ranks", str(ranks), "--device", "cpu"],
                                     capture_output=True, text=True, timeout=50)
            self.assertEqual(program.returncode, 0, program.stderr)
            row = json.loads(program.stdout)
            self.assertEqual((row["device"], row["world_size"]), ("cpu", ranks))
            self.assertIs(row["checked"], True)
            self.assertGreater(row["named_seconds"], 0)
            self.assertLess(row["named_seconds"], 5)
            self.assertGreaterEqual(row["ended_seconds"], row["named_seconds"])
        step = next(step for step in plan.plan(1) if step.name == "killed_rank")
        self.assertEqual(step.check(step, results.Results((row,))), "")

    def test_refusals(self):
        for arguments in (["--ranks", "1"], ["--device", "tpu"], ["--ranks"], ["--rank", "3"]):
            program = subprocess.run([sys.argv[2], *arguments], capture_output=True, text=True)
            self.assertEqual(program.returncode, 2, arguments)
            self.assertIn("usage:", program.stderr)


if __name__ == "__main__":
    unittest.main(argv=["killed_rank_test.py", "--verbose"])
