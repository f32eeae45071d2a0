"""MNIST's files as NumPy arrays, and this rank's part of them."""

import gzip
import math
import os
import pathlib
import zlib

import numpy as np


_LARGEST_COUNT = 10_000_000
_MOST_EXPANSION = 1032  # deflate: 258 bytes for two bits


def _content(path, sizes):
    """The elements of an IDX file, of `sizes` bytes each along its further dimensions."""
    dimensions = 1 + len(sizes)
    compressed = path.suffix == ".gz"
    with (gzip.open if compressed else open)(path, "rb") as file:
        header = file.read(4 + 4 * dimensions)
        if header[:4] != bytes((0, 0, 8, dimensions)) or len(header) < 4 + 4 * dimensions:
            raise ValueError("damaged, or not the file that it should be")
        shape = tuple(map(int, np.frombuffer(header, ">u4", offset=4)))
        if shape[1:] != sizes or not 0 < shape[0] <= _LARGEST_COUNT:
            raise ValueError(f"its shape is {shape}")
        whole = len(header) + math.prod(shape)
        length = path.stat().st_size
        if whole > (_MOST_EXPANSION if compressed else 1) * length:
            raise ValueError(f"{length} bytes, but its header announces {whole}")
        data = np.empty(shape, np.uint8)
        if file.readinto(data.reshape(-1)) != data.size or file.read(1):
            raise ValueError(f"shorter or longer than the {whole} bytes that its header announces")
    return data


def _read_idx(folder, name, sizes):
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            break
    else:
        raise FileNotFoundError(f"{folder / name}: no such file, nor with .gz")
    try:
        return _content(path, sizes)
    except (EOFError, OSError, ValueError, zlib.error) as error:
        why = getattr(error, "strerror", None) or error  # the rest would name the file again
        raise ValueError(f"{path}: cannot be read: {why}") from error


def _read_part(folder, part):
    images = _read_idx(folder, f"{part}-images-idx3-ubyte", (28, 28))
    labels = _read_idx(folder, f"{part}-labels-idx1-ubyte", ())
    if len(labels) != len(images) or labels.max() > 9:
        raise ValueError(f"{folder}: {part}: {len(labels)} labels up to {labels.max()} for "
                         f"{len(images)} images of ten digits")
    return images, labels


def load_dataset(data_dir=None):
    """Training images [60000, 28, 28] and labels, test images and labels: from `data_dir`, or
    $TUTTI_MNIST_DIR, or data/mnist."""
    folder = pathlib.Path(data_dir or os.environ.get("TUTTI_MNIST_DIR") or "data/mnist")
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder; examples/mnist_cnn/download_mnist.sh "
                                "fetches MNIST, --data-dir says where it is")
    return *_read_part(folder, "train"), *_read_part(folder, "t10k")


def evaluation_shard(count, rank, world_size):
    """The test images of a rank: each belongs to exactly one."""
    return slice(count * rank // world_size, count * (rank + 1) // world_size)
