"""Reads clicks in the format of Criteo's data: lines of a label, 13 integers and 26 categories of
eight hexadecimal digits, separated by tabs, any of them but the label empty; plain or .gz."""

import gzip
import itertools

import numpy as np
from examples import CATEGORIES, NUMBERS, encode

COLUMNS = 1 + NUMBERS + CATEGORIES


def open_file(path):
    return gzip.open(path, "rb") if str(path).endswith(".gz") else open(path, "rb")


def count_lines(path):
    with open_file(path) as file:
        return sum(piece.count(b"\n") for piece in iter(lambda: file.read(1 << 20), b""))


class ClicksFile:
    """The examples of a file, best read from the first to the last. Close it."""

    def __init__(self, path):
        self.path = path
        self._file = open_file(path)
        self._next = 0  # the number of the line that comes next

    def close(self):
        self._file.close()

    def read(self, first, count):
        """Lines `first` to `first + count`. Throws ValueError that names file and line."""
        if first < self._next:
            self._file.seek(0)
            self._next = 0
        lines = list(itertools.islice(self._file, first - self._next, first - self._next + count))
        self._next = first + len(lines)
        if len(lines) < count:
            raise ValueError(f"{self.path}: ends after {self._next} lines")
        table = [line.rstrip(b"\r\n").split(b"\t") for line in lines]
        try:
            return _parse(table)
        except ValueError:
            for number, row in enumerate(table):
                self._check(row, first + number + 1)
            raise

    def _check(self, row, line):
        """Throws what is wrong with a line, if it is this one."""
        if len(row) != COLUMNS:
            raise ValueError(f"{self.path}:{line}: {len(row)} columns instead of {COLUMNS}")
        try:
            _parse([row])
        except ValueError as error:
            raise ValueError(f"{self.path}:{line}: {error}") from None


def _parse(table):
    if any(len(row) != COLUMNS for row in table):
        raise ValueError(f"a line has not {COLUMNS} columns")
    labels = np.array([int(row[0]) for row in table])
    if labels.min() < 0 or labels.max() > 1:
        raise ValueError("a label is neither 0 nor 1")
    counts = np.array([[int(text) if text else np.nan for text in row[1 : 1 + NUMBERS]]
                       for row in table], np.float64)
    names = [row[1 + NUMBERS :] for row in table]
    categories = np.array([[int(text or b"0", 16) for text in row] for row in names])
    if categories.min() < 0 or categories.max() >= 2**32:
        raise ValueError("a category has more than eight digits")
    empty = np.array([[not text for text in row] for row in names])
    return encode(labels, counts, categories.astype(np.uint32), empty)
