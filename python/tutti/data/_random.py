"""Random numbers of a batch that do not depend on which process makes it."""

from __future__ import annotations

import contextlib
import hashlib
import random
import struct
import sys
from typing import Iterator

import numpy


def seed_of(*numbers: int) -> int:
    """64 bits of numbers below 2**63."""
    packed = struct.pack(f"<{len(numbers)}q", *numbers)
    return int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "little")


def seed_all(seed: int) -> None:
    """Seeds Python's generator, NumPy's, and PyTorch's if the program has loaded PyTorch."""
    random.seed(seed)
    numpy.random.seed(seed & 0xFFFFFFFF)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.manual_seed(seed >> 1)


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds them, and gives them back as they were."""
    torch = sys.modules.get("torch")
    python, numpys = random.getstate(), numpy.random.get_state()
    torchs = None if torch is None else torch.get_rng_state()
    seed_all(seed)
    try:
        yield
    finally:
        random.setstate(python)
        numpy.random.set_state(numpys)
        if torch is not None and torchs is not None:
            torch.set_rng_state(torchs)
