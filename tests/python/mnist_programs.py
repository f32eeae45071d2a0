"""The example's programs as tests run them, and a few images for them."""

import pathlib
import subprocess

import numpy

import seed_mnist

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "mnist_cnn"


def run(*command):
    return subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=280)


def write_digits(folder):
    """A few images, which are the squares of seed_mnist.py."""
    arrays = seed_mnist.load_dataset()
    for part, images, labels in (("train", *arrays[:2]), ("t10k", *arrays[2:])):
        for kind, array in (("images", images[:200]), ("labels", labels[:200].astype(numpy.uint8))):
            (folder / f"{part}-{kind}-idx{array.ndim}-ubyte").write_bytes(
                bytes((0, 0, 8, array.ndim)) + numpy.array(array.shape, ">u4").tobytes()
                + array.tobytes())
