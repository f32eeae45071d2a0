"""MNIST's files as NumPy arrays, and this rank's part of them."""

import gzip
import os
import pathlib
import zlib

import numpy as np


def _read_idx(folder, name, dimensions):
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            break
    else:
        raise FileNotFoundError(f"{folder / name}: no such file, nor with .gz")
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            data = file.read()
        shape = np.frombuffer(data, ">u4", dimensions, 4)
        pixels = np.frombuffer(data, np.uint8, offset=4 + 4 * dimensions)
        if data[:4] != bytes((0, 0, 8, dimensions)) or pixels.size != shape.prod(dtype=int):
            raise ValueError("damaged, or not the file that it should be")
    except (EOFError, OSError, ValueError, zlib.error) as error:
        why = getattr(error, "strerror", None) or error  # the rest would name the file again
        raise ValueError(f"{path}: cannot be read: {why}") from error
    return pixels.reshape(shape)


def load_dataset(data_dir=None):
    """Training images [60000, 28, 28] and labels, test images and labels: from `data_dir`, or
    $TUTTI_MNIST_DIR, or data/mnist."""
    folder = pathlib.Path(data_dir or os.environ.get("TUTTI_MNIST_DIR") or "data/mnist")
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder; examples/mnist_cnn/download_mnist.sh "
                                "fetches MNIST, --data-dir says where it is")
    return tuple(_read_idx(folder, f"{part}-{kind}-idx{dimensions}-ubyte", dimensions)
                 for part in ("train", "t10k") for kind, dimensions in (("images", 3), ("labels", 1)))


def evaluation_shard(count, rank, world_size):
    """The test images of a rank: each belongs to exactly one."""
    return slice(count * rank // world_size, count * (rank + 1) // world_size)
