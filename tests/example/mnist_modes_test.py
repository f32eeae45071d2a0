#!/usr/bin/env python3
"""Trains on a quarter of MNIST in every mode, two epochs each: mnist_modes_test.py PROGRAM

The bounds lie below what each mode reaches and above what it reaches when it is broken
(docs/numerics.md). Skipped, loudly, where TUTTI_MNIST_DIR does not name MNIST."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import short_mnist

PROGRAM = sys.argv[1]
# Options of a run, the least accuracy after two epochs, and the least and most density.
RUNS = {
    "fp32": (["fp32"], 0.94, 1.0, 1.0),
    "fp16": (["fp16"], 0.94, 1.0, 1.0),
    "bf16": (["bf16"], 0.94, 1.0, 1.0),
    "partial": (["partialUpdate"], 0.94, 0.33, 0.34),
    "top-K": (["sparseTopK", "--spars", "0.002"], 0.935, 0.002, 0.0021),
    "threshold": (["sparseThreshold", "--spars", "0.04"], 0.94, 0.0075, 0.02),
    "corrected top-K": (["sparseTopK", "--spars", "0.001", "--momentum-correction",
                         "--warm-up-epochs", "1"], 0.915, 0.016, 0.017),
}


class MnistModes(unittest.TestCase):
    def test_every_mode_learns(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            short_mnist.write(folder, train=15000, t10k=5000)
            for mode in RUNS:
                with self.subTest(mode=mode):
                    self.learns(mode, folder)

    def learns(self, mode, folder):
        options, accuracy, least, most = RUNS[mode]
        result = folder / "result.json"
        subprocess.run([PROGRAM, "--ranks", "2", "--epochs", "2", "--json", result, "--data-dir",
                        folder, "--dist-option", *options], check=True, timeout=200,
                       stdout=subprocess.DEVNULL)
        rows = [json.loads(line) for line in result.read_text().splitlines()]
        print(mode, [row["eval_accuracy"] for row in rows],
              [round(row["density"], 5) for row in rows], flush=True)
        self.assertEqual(rows[1]["data"], "mnist")
        self.assertGreaterEqual(rows[1]["eval_accuracy"], accuracy)
        density = (rows[0]["density"] + rows[1]["density"]) / 2
        self.assertGreaterEqual(density, least)
        self.assertLessEqual(density, most)


if __name__ == "__main__":
    if not short_mnist.is_there():
        print("SKIPPED: TUTTI_MNIST_DIR does not name a folder with MNIST")
        sys.exit(77)  # as ctest knows it
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
