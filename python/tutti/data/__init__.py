"""Data for ranks: samplers that deal a dataset out, and a loader with workers.

    from tutti import data
    sampler = data.RandomSampler(dataset, batch_size=64, world_size=size, rank=rank)
    loader = data.DataLoader(dataset, sampler, transform=augment, num_workers=2)
    for epoch in range(10):
        for x, y in loader:
            ...
"""

from tutti import _identity  # noqa: F401 - refuses another package's __init__.py
from tutti.data.collate import collate
from tutti.data.dataset import ArrayDataset, Dataset
from tutti.data.loader import DataLoader
from tutti.data.preload import Preloader
from tutti.data.sampler import MapSampler, Sampler
from tutti.data.samplers import Infinite, RandomSampler, ReplacementSampler, SequentialSampler
from tutti.data.shared import SharedDataset
from tutti.errors import WorkerError

__all__ = [
    "ArrayDataset",
    "DataLoader",
    "Dataset",
    "Infinite",
    "MapSampler",
    "Preloader",
    "RandomSampler",
    "ReplacementSampler",
    "Sampler",
    "SequentialSampler",
    "SharedDataset",
    "WorkerError",
    "collate",
]
