#!/usr/bin/env python3
"""Checks that README.md has the figures between hosts that docs/performance.md has: figures_test.py ROOT"""

import re
import sys
import unittest
from pathlib import Path


class Figures(unittest.TestCase):
    root = Path()

    def rows(self, file, title):
        """Cells by the first one, of the first table after `title`."""
        text = (self.root / file).read_text(encoding="utf-8").partition(title)[2]
        table = re.search(r"(?m)(^\|.*\n)+", text)
        rows = [line.strip("|").split("|") for line in table[0].splitlines()]
        return {first.strip(): [cell.strip() for cell in cells] for first, *cells in rows}

    def test_unshaped(self):
        there = self.rows("docs/performance.md", "### All sizes")
        here = self.rows("README.md", "unshaped (`cubic`)")
        del here["---"]
        self.assertEqual(len(here), 4)
        for size, cells in here.items():
            with self.subTest(size=size):
                self.assertEqual(cells, [cell.split()[0] for cell in there[f"all_reduce {size}"]])

    def test_shaped(self):
        there = self.rows("docs/performance.md", "### What is long")
        cells = [re.split(r" \(|;", there[layout][1]) for layout in ("2x1", "3x1", "2x2", "4x2")]
        here = self.rows("README.md", "at 1 Gbit/s, of what the wire allows")
        for name, column in (("tutti", 0), ("Open MPI 4.1.4, the best of default, rings and han", 1)):
            self.assertEqual(here[name], [cell[column] for cell in cells])


if __name__ == "__main__":
    Figures.root = Path(sys.argv.pop(1))
    unittest.main()
