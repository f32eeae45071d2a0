#!/usr/bin/env python3
"""What programs say of options that they cannot use, and of results that have no place:
options_test.py FOLDER (of the programs)"""

import re
import subprocess
import sys
import unittest
from pathlib import Path

NUMBERS = {  # of each program: an option, values that are refused
    "scale_sim": [("--hosts", "x", "1", "4097"), ("--ranks", "0", "2x"), ("--gbps", "0", "nan"),
                  ("--latency-us", "-1", ""), ("--overhead-ns", "-1"), ("--timeout-ms", "0"),
                  ("--largest", "3", "1M"), ("--room", "-1")],
    "cluster_bench": [("--gbps", "x", "0"), ("--sizes", "8,x", "0"), ("--seconds", "-1", "inf")],
    "ps_bench": [("--rows", "x", "-1"), ("--batch", "1G", "1.5"), ("--rounds", "0"),
                 ("--seconds", "nan")],
    "ps_table_bench": [("--rows", "x", "1K"), ("--dim", "0"), ("--seconds", "1s"), ("--grow", "-1")],
    "overlap_bench": [("--layers", "x"), ("--rounds", "0"), ("--gbps", "fast")],
    "modes_bench": [("--rounds", "x", "0"), ("--elements", "431080,x", "3")],
    "simulation": [("--seeds", "x", "-1"), ("--seed", "1e3")],
    "faults": [("--seed", "x", "-1"), ("--trials", "1e3"), ("--jobs", "2x")],
    "ps_faults": [("--seed", "x", "-1"), ("--trials", "1e3", "-1"), ("--trial", "2x")],
    "mpi_rig": [("--seed", "x"), ("--trials", "1e3", "-1"), ("--timeout", "2x")],
    "ps_job": [("--seed", "x"), ("--timeout", "-1"), ("--lost", "2x"), ("--lost-server", "")],
    "topk_bench": [("--n", "x"), ("--runs", "0"), ("--density", "0.1,2")],
    "sparse_bench": [("--hosts", "3", "3by2"), ("--n", "0"), ("--density", "2"), ("--common", "-1"),
                     ("--runs", "x")],
    "killed_rank_bench": [("--ranks", "1", "x")],
}


class Options(unittest.TestCase):
    def refused(self, program, *options):
        """What it says."""
        result = subprocess.run([FOLDER / program, *options], capture_output=True, text=True,
                                timeout=20)
        self.assertIn(result.returncode, (1, 2), (options, result.stderr))
        return result.stderr

    def test_numbers(self):
        for program, all_values in NUMBERS.items():
            for option, *values in all_values:
                for value in values:
                    with self.subTest(program=program, option=option, value=value):
                        said = self.refused(program, option, value)
                        part = value.split(",")[-1]
                        self.assertRegex(
                            said, f"^{program}: {option} has '{part}', (but must be|which is)")

    def test_positions(self):
        for program, before, name in (("call_bench", [], "ROUNDS"), ("store_bench", [], "ROUNDS"),
                                      ("ps_link_bench", [], "ROUNDS"), ("memory_bench", [], "RANKS"),
                                      ("ps_checkpoint_bench", ["."], "ROWS"),
                                      ("ps_checkpoint_bench", [".", "1K"], "ROUNDS")):
            for value in ("x", "0", "5s"):
                with self.subTest(program=program, name=name, value=value):
                    self.assertRegex(self.refused(program, *before, value),
                                     f"^{program}: {name} has '{value}', but must be")

    def test_names(self):
        self.assertIn("--peers has 'nope'", self.refused("ps_bench", "--peers", "own,nope"))
        self.assertIn("--tasks has 'nope'", self.refused("ps_bench", "--tasks", "nope"))

    def test_faults_say_how_they_are_used(self):
        common = ["--trials N", "--first K", "--seed S", "--trial K"]
        for program, options in (("faults", [*common, "--jobs J", "--mpiexec PATH"]), ("ps_faults", common),
                                 ("mpi_rig", ["--work NAME", "--seed S"]), ("ps_job", ["--mode NAME", "--seed N"])):
            with self.subTest(program=program):
                shown = subprocess.run([FOLDER / program, "--help"], capture_output=True, text=True,
                                       timeout=20)
                self.assertEqual((shown.returncode, shown.stderr), (0, ""))
                for option in options:
                    self.assertIn(f"\n  {option} ", shown.stdout)
                self.assertIn("unknown option '--nope'", self.refused(program, "--nope", "1"))
                self.assertIn("--seed lacks a value", self.refused(program, "--seed"))

    def test_simulation_counts_faults(self):
        """As the plans say that it shows of single seeds."""
        def last_line(*options):
            shown = subprocess.run([FOLDER / "simulation", *options], capture_output=True, text=True,
                                   timeout=50, check=True)
            return shown.stdout.splitlines()[-1], shown.stdout

        kinds = [re.search("; fault: ([a-z ]+)", last_line("--seed", str(seed))[1])[1]
                 for seed in range(1, 21)]
        mistaken, none = kinds.count("mistaken"), kinds.count("none")
        self.assertTrue(mistaken and none and mistaken + none < 20, kinds)
        self.assertEqual(last_line("--seeds", "20")[0],
                         f"20 seeds, {20 - mistaken - none} of them with a fault and {mistaken} with a "
                         "mistaken call, 0 failed")

    def test_turns_that_are_too_short_for_a_neighbour_to_notice(self):
        result = subprocess.run([FOLDER / "ps_table_bench", "--seconds", "0.001", "--rows", "64K", "--grow",
                                 "0"], capture_output=True, text=True, timeout=30)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, "(?m)^memory_adam +[0-9.]+ of_figure$")

    def test_results_that_have_no_place(self):
        for program, *options in (["scale_sim"], ["ps_bench"], ["cluster_bench"],
                                  ["ps_table_bench", "--rows", "64K"],
                                  ["overlap_bench", "--elements", "100"]):
            with self.subTest(program=program):  # below what is no folder
                self.assertIn("/dev/null/results",
                              self.refused(program, *options, "--json", "/dev/null/results"))


if __name__ == "__main__":
    FOLDER = Path(sys.argv.pop(1))
    unittest.main()
