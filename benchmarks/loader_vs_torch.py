#!/usr/bin/env python3
"""Samples per second of tutti's DataLoader beside PyTorch's, with as many workers.

Images of MNIST's size, uint8 [28, 28], with labels; the transform makes float32 of an image and
normalises it. Both loaders read the same dataset in the same shuffled order. PyTorch's also reads
one whose samples are tensors, since it collates those faster, and the better of the two counts.
Before it is timed, every batch of each is compared with what it must be. Epochs are timed with the
start of their workers, in turns; medians.

    loader_vs_torch.py [--rounds 9] [--workers 0 1 2] [--samples 60000] [--batch-size 64]
"""

import argparse
import json
import os
import statistics
import sys
import time

import numpy as np
import torch
import torch.utils.data

from tutti import data

MEAN, DEVIATION = np.float32(0.1307 * 255), np.float32(0.3081 * 255)


def normalised(sample):
    image, label = sample
    return (image.astype(np.float32) - MEAN) / DEVIATION, label


class Images:
    """The dataset for both, as NumPy arrays."""

    def __init__(self, count):
        rng = np.random.default_rng(0)
        self.images = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        self.labels = rng.integers(0, 10, count)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return normalised((self.images[index], self.labels[index]))


class Tensors(Images):
    """Its samples as PyTorch's tensors."""

    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        return torch.from_numpy(image), int(label)


def loaders(arguments, workers):
    """A loader of each kind, whose epochs are the same."""
    numpys, tensors = Images(arguments.samples), Tensors(arguments.samples)

    def sampler():
        return data.RandomSampler(numpys, arguments.batch_size, seed=1)

    def torchs(dataset):
        return torch.utils.data.DataLoader(dataset, batch_sampler=sampler(), num_workers=workers)

    return {"tutti": data.DataLoader(numpys, sampler(), num_workers=workers),
            "torch, arrays": torchs(numpys), "torch, tensors": torchs(tensors)}


def verify(name, loader, images, labels):
    """Exits unless the loader gives these images and labels, epoch 0's batches in their order."""
    sampler = data.RandomSampler(labels, loader_batch_size(loader), seed=1)
    count = 0
    for (x, y), indices in zip(loader, sampler):
        expected = (images[indices].astype(np.float32) - MEAN) / DEVIATION
        count += len(y)
        if not (np.asarray(x) == expected).all() or not (np.asarray(y) == labels[indices]).all():
            sys.exit(f"{name}: wrong batch of samples {indices}")
        if np.asarray(x).dtype != np.float32:
            sys.exit(f"{name}: images are {x.dtype}")
    if count != len(labels):
        sys.exit(f"{name}: {count} samples of {len(labels)}")


def loader_batch_size(loader):
    sampler = getattr(loader, "batch_sampler", None) or loader.sampler
    return sampler.batch_size


def speed(loader, samples):
    """Samples per second of an epoch, which is read and not used."""
    start, count = time.perf_counter(), 0
    for _, labels in loader:
        count += len(labels)
    if count != samples:
        sys.exit(f"{count} samples of {samples}")
    return count / (time.perf_counter() - start)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--samples", type=int, default=60000)
    parser.add_argument("--batch-size", type=int, default=64)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"# torch {torch.__version__}, NumPy {np.__version__}, load average "
          f"{os.getloadavg()[0]:.2f} on {os.cpu_count()} cores", file=sys.stderr)
    for workers in arguments.workers:
        sides = loaders(arguments, workers)
        for name, loader in sides.items():
            dataset = loader.dataset
            verify(name, loader, dataset.images, dataset.labels)
        speeds = {name: [] for name in sides}
        for _ in range(arguments.rounds):
            for name, loader in sides.items():
                speeds[name].append(speed(loader, arguments.samples))
        medians = {name: statistics.median(values) for name, values in speeds.items()}
        best = max(value for name, value in medians.items() if name != "tutti")
        print(json.dumps({"workers": workers, "ratio": round(medians["tutti"] / best, 2),
                          **{name: round(value) for name, value in medians.items()}}), flush=True)


if __name__ == "__main__":
    main()
