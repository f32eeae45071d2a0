"""Made-up clicks that can be learned: a stream without end that a seed determines.

As in Criteo's data, most categories of a field are rare (Zipf's law), fields have from 3 to ten
million of them, and some values are missing. Whether somebody clicks is drawn with a probability
that a hidden model computes of the example: a weight for each category, one for each number, and
products of hidden vectors for some pairs of fields, which a linear model cannot learn. So there is a
best AUC, which best_auc() estimates.

    python examples/ctr/made_up.py --examples 100000 --seed 7 > train.txt     # Criteo's file format
"""

import argparse
import sys

import numpy as np
from auc import auc
from examples import CATEGORIES, NUMBERS, encode, join

# How many categories each field of Criteo's data of 2014 has.
CARDINALITIES = np.array([
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992,
    5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572])
BLOCK = 512  # examples that are drawn together
PAIRS = ((0, 5), (1, 8), (6, 13), (4, 16), (19, 22), (17, 24))
MISSING = 0.1
BIAS = -1.6  # about a quarter are clicks
CATEGORY_SCALE, NUMBER_SCALE, PAIR_SCALE = 0.65, 0.35, 0.9


def _mix(x):
    """The bits of uint64 numbers, mixed (MurmurHash3's finaliser)."""
    x = (x ^ (x >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    x = (x ^ (x >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return x ^ (x >> np.uint64(33))


def _random(seed, number):
    return np.random.Generator(np.random.Philox(key=np.array([seed, number], np.uint64)))


class MadeUpClicks:
    """Example i is a function of the seed and i alone."""

    def __init__(self, seed):
        self.seed = seed
        self.slopes = 2 * _random(seed, 2**64 - 1).random(NUMBERS) - 1
        self._drawn = (None, None)  # a block's number, and the block

    def read(self, first, count):
        """Examples `first` to `first + count`."""
        parts = []
        while count > 0:
            start = first % BLOCK
            block = self._block(first // BLOCK)
            taken = min(count, BLOCK - start)
            parts.append(block if taken == BLOCK else type(block)(
                block.labels[start : start + taken], block.numbers[start : start + taken],
                block.ids[start : start + taken]))
            first, count = first + taken, count - taken
        return join(parts)

    def _block(self, number):
        if self._drawn[0] != number:
            labels, counts, categories, empty, _ = self.draw(number)
            self._drawn = number, encode(labels, counts, categories, empty)
        return self._drawn[1]

    def draw(self, number):
        """Block `number` in raw columns, as encode() takes them, and the probabilities of a click."""
        random = _random(self.seed, number)
        counts = np.floor(np.exp(6 * random.random((BLOCK, NUMBERS)) ** 2) - 1)
        counts[random.random(counts.shape) < MISSING] = np.nan
        # floor(C^u) with uniform u: category k has a probability of about 1 / k.
        ranks = CARDINALITIES ** random.random((BLOCK, CATEGORIES))
        fields = np.arange(CATEGORIES, dtype=np.uint64) << np.uint64(32)
        hashes = _mix(_mix(fields | ranks.astype(np.uint64)) ^ np.uint64(self.seed))
        empty = random.random(hashes.shape) < MISSING * (np.arange(CATEGORIES) % 3 == 2)
        chances = self._chances(counts, hashes, empty)
        labels = random.random(BLOCK) < chances
        return labels, counts, hashes.astype(np.uint32), empty, chances

    def _chances(self, counts, hashes, empty):
        """The hidden model."""
        weights = np.where(empty, 0.0, _symmetric(hashes >> np.uint64(44), 20))
        score = BIAS + CATEGORY_SCALE * weights.sum(axis=1)
        score += NUMBER_SCALE * (np.log1p(np.nan_to_num(counts)) - 1.8) @ self.slopes
        for a, b in PAIRS:
            for bits in (np.uint64(32), np.uint64(36), np.uint64(40)):
                score += PAIR_SCALE * (_symmetric(hashes[:, a] >> bits & np.uint64(15), 4)
                                       * _symmetric(hashes[:, b] >> bits & np.uint64(15), 4))
        return 1 / (1 + np.exp(-score))


def _symmetric(values, bits):
    """Integers of so many bits as numbers from -1 to 1."""
    return (values.astype(np.float64) + 0.5) * 2.0 ** (1 - bits) - 1


def best_auc(seed, blocks=100):
    """The AUC of who knows the hidden model."""
    drawn = [MadeUpClicks(seed).draw(number) for number in range(blocks)]
    return auc(np.concatenate([block[0] for block in drawn]),
               np.concatenate([block[4] for block in drawn]))


def write(seed, examples, file):
    """The first examples in the format of Criteo's files."""
    for number in range(-(-examples // BLOCK)):
        labels, counts, categories, empty, _ = MadeUpClicks(seed).draw(number)
        for row in range(min(BLOCK, examples - number * BLOCK)):
            numbers = ("" if np.isnan(count) else f"{count:.0f}" for count in counts[row])
            names = ("" if gone else f"{name:08x}" for name, gone in zip(categories[row], empty[row]))
            file.write("\t".join([str(int(labels[row])), *numbers, *names]) + "\n")


def main():
    parser = argparse.ArgumentParser(description="Writes made-up clicks in Criteo's file format.")
    parser.add_argument("--examples", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    write(arguments.seed, arguments.examples, sys.stdout)
    print(f"best AUC: {best_auc(arguments.seed):.4f}", file=sys.stderr)


if __name__ == "__main__":
    main()
