#!/usr/bin/env python3
"""Runs PyTorch's own tests of process groups and DistributedDataParallel, which it installs, on
tutti: those for Gloo, with tutti in its place. Wants expecttest and hypothesis beside PyTorch.

    PYTHONPATH=build/release/python python3 scripts/pytorch_c10d.py [--ranks 2] [-k NAME] [--gloo]

Prints a line for each test that fails, and how many passed, failed and were not applicable, as
PyTorch's own conditions say (a GPU, more ranks, another backend).
"""

import argparse
import collections
import os
import sys
import tempfile
import unittest


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("-k", dest="name", default="", help="only tests with this in their name")
    parser.add_argument("--gloo", action="store_true", help="on Gloo itself, to compare")
    parser.add_argument("--seconds", type=int, default=60, help="what a test may take")
    return parser.parse_args()


def put_tutti_in_the_place_of_gloo():
    import tutti.torch  # registers the backend
    from torch.distributed import distributed_c10d as c10d

    c10d.Backend._ensure_backend_registered("gloo")
    c10d.Backend._plugins["GLOO"] = c10d.Backend._plugins["TUTTI"]
    tutti.torch._work.SHOWN_AS = "gloo"  # what tests of the profiler look for


class Results(unittest.TestResult):
    def __init__(self):
        super().__init__()
        self.outcomes = collections.defaultdict(list)

    def _note(self, outcome, test, why=""):
        self.outcomes[outcome].append(test._testMethodName)
        print(outcome, test._testMethodName, why, flush=True)

    def addSuccess(self, test):
        self._note("passed", test)

    def addSkip(self, test, reason):
        self._note("not applicable", test, reason.split("\n")[0][:120])

    def addFailure(self, test, error):
        lines = [line for line in str(error[1]).splitlines() if "Error" in line]
        self._note("failed", test, (lines or [str(error[1])])[-1][:200])

    addError = addFailure


def main():
    options = parse_arguments()
    folder = tempfile.mkdtemp()
    os.environ.update(BACKEND="gloo", WORLD_SIZE=str(options.ranks), TEMP_DIR=folder,
                      MASTER_ADDR="127.0.0.1", GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1",
                      DISTRIBUTED_TESTS_DEFAULT_TIMEOUT=str(options.seconds))
    import torch
    from torch.testing._internal import common_distributed
    from torch.testing._internal.distributed import distributed_test

    common_distributed.TIMEOUT_DEFAULT = options.seconds
    if not options.gloo:
        put_tutti_in_the_place_of_gloo()

    class Tests(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    Tests.__qualname__ = "Tests"
    names = [name for name in unittest.TestLoader().getTestCaseNames(Tests) if options.name in name]
    results = Results()
    unittest.TestSuite(Tests(name) for name in names).run(results)
    print(f"PyTorch {torch.__version__}, {options.ranks} ranks:", ", ".join(
        f"{len(results.outcomes[outcome])} {outcome}"
        for outcome in ("passed", "failed", "not applicable")))
    return 1 if results.outcomes["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
