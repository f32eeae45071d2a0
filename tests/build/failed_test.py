#!/usr/bin/env python3
"""Checks what is said of tests that have failed: failed_test.py ROOT COMPILER."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = sys.argv[1]
RULE = "-" * 58


def entry(name, output, result="Failed"):
    """As ctest writes it."""
    return "\n".join([f"1/9 Testing: {name}", f"1/9 Test: {name}", 'Command: "Failure"', "Output:",
                      RULE, output + "<end of output>", "Test time =   1.50 sec", RULE,
                      f"Test {result}.", f'"{name}" end time: now', RULE, "", ""])


class Said(unittest.TestCase):
    def said(self, *entries):
        with tempfile.TemporaryDirectory() as build:
            log = Path(build) / "Testing/Temporary/LastTest.log"
            log.parent.mkdir(parents=True)
            log.write_text("".join(entries), encoding="utf-8")
            program = subprocess.run([f"{ROOT}/scripts/failed.sh", build], check=True, text=True,
                                     stdout=subprocess.PIPE)
        return program.stdout

    def test_nothing_of_what_has_passed(self):
        self.assertEqual(self.said(entry("good", "a.cpp:3: Failure\n", "Passed")), "")

    def test_nothing_without_a_log(self):
        with tempfile.TemporaryDirectory() as build:
            self.assertEqual(subprocess.check_output([f"{ROOT}/scripts/failed.sh", build]), b"")

    def test_failures_and_what_follows_them(self):
        output = ("[ RUN      ] A.B\nmuch\ntutti error: lost rank 1\n[rank 2] A.B\na.cpp:3: Failed\n"
                  "Expected: 1\n\x1b[0;31m[  FAILED  ] \x1b[mA.B (3 ms)\r\n")
        self.assertEqual(self.said(entry("good", "x\n", "Passed"), entry("bad", output)),
                         "What failed tests have said:\n  bad, after 1.50 s:\n    [rank 2] A.B\n"
                         "    a.cpp:3: Failed\n    Expected: 1\n    [  FAILED  ] A.B (3 ms)\n")

    def test_the_last_lines_of_who_says_nothing_of_a_failure(self):
        output = "".join(f"line {number}\n" for number in range(20))
        said = self.said(entry("bad", output), entry("silent", "")).splitlines()
        self.assertEqual(said[2:], [f"    line {number}" for number in range(14, 20)] +
                         ["  silent, after 1.50 s:"])

    def test_a_few_lines_of_each_of_many(self):
        for tests in (1, 2, 7, 30, 300):
            failures = "a.cpp:3: Failure\nExpected: 1\n" * 90
            said = self.said(*[entry(f"bad.{one}", failures) for one in range(tests)])
            lines = said.splitlines()
            self.assertLessEqual(len(lines), 60)
            self.assertGreater(len(lines), 45)
            self.assertIn("bad.0, after", lines[1])
            self.assertEqual(" more tests" in lines[-1], tests == 30 or tests == 300)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
