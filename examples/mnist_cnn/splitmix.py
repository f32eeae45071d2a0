"""The random numbers of the C++ program: the same seed gives the same weights and the same order."""

import numpy as np


def _mix(z):
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


class Random:
    """SplitMix64 (Steele, Lea, Flood 2014); with a purpose, a stream of its own for each pair."""

    def __init__(self, seed, purpose=None):
        self.state = seed
        if purpose is not None:
            self.state = (int(Random(seed).next(1)[0]) + purpose) % 2**64
            self.state = int(self.next(1)[0])

    def next(self, count):
        """The next `count` numbers of 64 bits."""
        step = 0x9E3779B97F4A7C15
        steps = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(step)
        first, self.state = self.state, (self.state + count * step) % 2**64
        return _mix(steps + np.uint64(first))

    def uniform(self, low, high, shape):
        """In [low, high), in steps of 2^-24 of the width; float32."""
        low, high = np.float32(low), np.float32(high)
        unit = (self.next(int(np.prod(shape))) >> np.uint64(40)).astype(np.float32)
        return (low + (high - low) * (unit * np.float32(2.0**-24))).reshape(shape)

    def permutation(self, count):
        """The numbers below `count`, shuffled after Fisher and Yates."""
        limits = np.arange(count, 1, -1, dtype=np.uint64)
        draws = ((self.next(len(limits)) >> np.uint64(32)) * limits) >> np.uint64(32)
        order = list(range(count))
        for last, other in zip(range(count - 1, 0, -1), draws.tolist()):
            order[last], order[other] = order[other], order[last]
        return np.array(order)
