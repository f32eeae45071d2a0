"""The first images of MNIST."""

import gzip
import os
import pathlib
import struct

MNIST = os.environ.get("TUTTI_MNIST_DIR", "")


def is_there():
    return bool(MNIST) and pathlib.Path(MNIST).is_dir()


def shorten(name, header, width, count, folder):
    """Writes the first `count` images or labels, of `width` bytes each, of an IDX file."""
    source = pathlib.Path(MNIST) / name
    packed = source.with_name(name + ".gz")
    data = gzip.decompress(packed.read_bytes()) if packed.exists() else source.read_bytes()
    (folder / name).write_bytes(
        data[:4] + struct.pack(">I", count) + data[8:header + count * width])


def write(folder, **images):
    """Into `folder`, so many of each part: train=15000, t10k=5000."""
    for part, count in images.items():
        shorten(f"{part}-images-idx3-ubyte", 16, 28 * 28, count, pathlib.Path(folder))
        shorten(f"{part}-labels-idx1-ubyte", 8, 1, count, pathlib.Path(folder))
