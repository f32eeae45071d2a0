#!/usr/bin/env python3
"""What `make bench` runs where none is named, of a tree of made-up benchmarks: briefly_test.py ROOT"""

import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path


class Briefly(unittest.TestCase):
    root = Path()

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tree = Path(folder.name)
        for name in ("bench.sh", "find_python.sh"):
            (self.tree / "scripts").mkdir(exist_ok=True)
            shutil.copy(self.root / "scripts" / name, self.tree / "scripts")
        self.write("tests/cluster/cluster.py", "def is_possible():\n    return False\n")
        self.write("build/python/tutti/__init__.py", "")
        self.write("build/python/tutti/torch.py", "raise ImportError('too old')\n")

    def write(self, path, text, mode=0o644):
        file = self.tree / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        file.chmod(mode)

    def add(self, name, status=0, python=False):
        """A benchmark that says its name and arguments, and ends with `status`."""
        if python:
            self.write(f"benchmarks/{name}.py", "import sys\n"
                       f"print('{name}.py', *sys.argv[1:])\nsys.exit({status})\n")
        else:
            self.write(f"benchmarks/{name}.cpp", "")
            self.write(f"build/bin/{name}", f"#!/bin/sh\necho {name} $*\nexit {status}\n", 0o755)

    def bench(self, *words):
        return subprocess.run([self.tree / "scripts/bench.sh", "build", *words], capture_output=True,
                              text=True)

    def test_what_fails_does_not_end_the_others_and_is_named(self):
        self.add("a_bench", status=3)
        self.add("b_bench", status=1, python=True)
        self.add("store_bench")
        run = self.bench()
        self.assertEqual((run.returncode, run.stderr), (1, "bench.sh: failed: a_bench b_bench\n"))
        self.assertIn("\nstore_bench 400\n", run.stdout)

    def test_what_cannot_run_here_is_left_out_and_said(self):
        self.add("cluster_bench")
        self.add("cluster_bench", python=True)  # which runs the program
        self.add("torch_vs_gloo", python=True)
        self.add("store_bench")
        run = self.bench()
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        self.assertEqual(run.stdout.splitlines(), [
            "== cluster_bench is left out, for lack of network namespaces, which need root and iproute2",
            "== store_bench 400", "store_bench 400",
            "== torch_vs_gloo is left out, for lack of PyTorch 2.1 or newer"])

    def test_one_that_is_named_runs_with_its_words_and_ends_as_it_does(self):
        self.add("cluster_bench", status=7, python=True)
        run = self.bench("cluster_bench", "--layouts", "2x1")
        self.assertEqual((run.returncode, run.stdout.splitlines()[-1]),
                         (7, "cluster_bench.py --layouts 2x1"))


if __name__ == "__main__":
    Briefly.root = Path(sys.argv.pop(1))
    unittest.main()
