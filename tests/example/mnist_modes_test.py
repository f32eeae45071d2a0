#!/usr/bin/env python3
"""Trains on MNIST in every mode, two epochs each: mnist_modes_test.py PROGRAM

The bounds lie below what each mode reaches and above what it reaches when it is broken. Skipped,
loudly, where TUTTI_MNIST_DIR does not name MNIST."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM = sys.argv[1]
# Options of a run, the least accuracy after two epochs, and the most and least density.
RUNS = {
    "fp32": (["fp32"], 0.984, 1.0, 1.0),
    "fp16": (["fp16"], 0.984, 1.0, 1.0),
    "bf16": (["bf16"], 0.984, 1.0, 1.0),
    "partial": (["partialUpdate"], 0.984, 0.34, 0.33),
    "top-K": (["sparseTopK", "--spars", "0.01"], 0.984, 0.0101, 0.01),
    "threshold": (["sparseThreshold", "--spars", "0.02"], 0.983, 0.05, 0.005),
    "corrected top-K": (["sparseTopK", "--spars", "0.001", "--momentum-correction",
                         "--warm-up-epochs", "1"], 0.97, 0.04, 0.001),
}


@unittest.skipUnless(pathlib.Path(os.environ.get("TUTTI_MNIST_DIR", "")).is_dir()
                     and os.environ.get("TUTTI_MNIST_DIR"),
                     "SKIPPED: TUTTI_MNIST_DIR does not name a folder with MNIST")
class MnistModes(unittest.TestCase):
    def test_every_mode_learns(self):
        for name, (options, accuracy, most, least) in RUNS.items():
            with self.subTest(mode=name), tempfile.TemporaryDirectory() as folder:
                result = pathlib.Path(folder) / "result.json"
                subprocess.run([PROGRAM, "--ranks", "2", "--epochs", "2", "--json", result,
                                "--dist-option", *options], check=True, timeout=280,
                               stdout=subprocess.DEVNULL)
                rows = [json.loads(line) for line in result.read_text().splitlines()]
                print(name, [row["eval_accuracy"] for row in rows],
                      [round(row["density"], 5) for row in rows], flush=True)
                self.assertEqual(rows[1]["data"], "mnist")
                self.assertGreaterEqual(rows[1]["eval_accuracy"], accuracy)
                density = (rows[0]["density"] + rows[1]["density"]) / 2
                self.assertGreaterEqual(density, least)
                self.assertLessEqual(density, most)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
