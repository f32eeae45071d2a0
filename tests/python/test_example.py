"""The example's two programs train: an epoch on real MNIST, and a few digits in each mode."""

import io
import json
import os
import pathlib
import pty
import re
import subprocess
import sys

import numpy
import pytest

import launching
from mnist_programs import EXAMPLE, run

NUMBER = r"\d+\.\d{6}"
LINES = (rf"Starting Epoch 0:\nTraining loss = {NUMBER}, training accuracy = {NUMBER}\n"
         rf"Evaluation accuracy = {NUMBER}, Elapsed Time = {NUMBER}s\n")


@pytest.mark.skipif("TUTTI_MNIST_DIR" not in os.environ, reason="TUTTI_MNIST_DIR does not say where MNIST is")
def test_an_epoch(tmp_path):
    output = tmp_path / "run.json"
    done = run(*launching.MPIEXEC, "-n", 2, sys.executable, EXAMPLE / "mnist_dist.py", "--epochs", 1,
               "--json", output, "--dist-option", "fp16")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(LINES, done.stdout), done.stdout
    (epoch,) = map(json.loads, output.read_text().splitlines())
    assert epoch["eval_accuracy"] > 0.95 and epoch["eval_count"] == 10000
    assert (epoch["world_size"], epoch["epoch"]) == (2, 0)


def test_an_epoch_by_multiprocessing(digits):
    output = digits / "run.json"
    done = run(sys.executable, EXAMPLE / "mnist_multiprocess.py", 2, "--data-dir", digits, "--epochs", 1,
               "--json", output)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(LINES, done.stdout), done.stdout
    (epoch,) = map(json.loads, output.read_text().splitlines())
    assert (epoch["eval_count"], epoch["world_size"], epoch["epoch"]) == (200, 2, 0)


def train(folder, ranks, *options):
    """Trains on the digits there; the epochs' JSON objects."""
    done = run(sys.executable, EXAMPLE / "mnist_multiprocess.py", ranks, "--data-dir", folder,
               "--json", folder / "run.json", *options)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in (folder / "run.json").read_text().splitlines()]


# What the C++ program writes, in its order or not.
KEYS = {"epoch", "train_loss", "train_accuracy", "eval_accuracy", "eval_count", "seconds",
        "images_per_second", "world_size", "dist_option", "device", "data", "bytes_per_step",
        "bytes_between_per_step", "density", "non_finite", "seconds_by_phase", "lateness"}


@pytest.mark.parametrize("mode", [
    ["fp32"], ["sparseTopK", "--spars", 0.01, "--momentum-correction", "--clip-norm", 5,
               "--warm-up-epochs", 1]])
def test_resumes_to_the_same_bits(mode, digits):
    options = ["--dist-option", *mode, "--seed", 7, "--save", digits / "model.npz"]
    whole = train(digits, 2, *options, "--epochs", 2)
    expected = (digits / "model.npz").read_bytes()
    train(digits, 2, *options, "--epochs", 1)
    (resumed,) = train(digits, 2, "--dist-option", *mode, "--epochs", 2, "--resume",
                       digits / "model.npz", "--save", digits / "model.npz")
    assert set(resumed) == KEYS and resumed["epoch"] == 1
    assert resumed["train_loss"] == whole[1]["train_loss"] != whole[0]["train_loss"]
    with numpy.load(digits / "model.npz") as got, numpy.load(io.BytesIO(expected)) as wanted:
        assert got.files == wanted.files
        assert all((got[key] == wanted[key]).all() for key in got.files)
    assert resumed["density"] == 1 if mode == ["fp32"] else 0.01 <= resumed["density"] < 0.02
    if mode != ["fp32"]:
        done = run(sys.executable, EXAMPLE / "mnist_multiprocess.py", 3, "--data-dir", digits,
                   "--dist-option", *mode, "--resume", digits / "model.npz")
        assert done.returncode == 1 and "of 2 ranks, each with a state of its own" in done.stderr
    else:
        (digits / "model.npz").write_bytes(expected[:-100])
        done = run(sys.executable, EXAMPLE / "mnist_multiprocess.py", 1, "--data-dir", digits,
                   "--resume", digits / "model.npz")
        assert done.returncode == 1 and "model.npz: not a file" in done.stderr


@pytest.mark.parametrize("launcher", ["mpiexec", "multiprocessing"])
@pytest.mark.parametrize("option, spars", [("fp32", 0), ("fp16", 0), ("partialUpdate", 0),
                                           ("sparseTopK", 0.05), ("sparseThreshold", 0.001)])
def test_the_script_of_singa(launcher, option, spars):
    script = pathlib.Path(__file__).with_name("seed_mnist.py")
    if launcher == "mpiexec":
        done = run(*launching.MPIEXEC, "-n", 2, sys.executable, script, option, spars)
    else:
        done = run(sys.executable, script, option, spars, 2)
    assert done.returncode == 0, done.stderr
    assert float(re.search(r"accuracy = (\S+)", done.stdout).group(1)) > 0.9


def test_a_terminal_shows_progress(digits):
    ours, theirs = pty.openpty()
    with open(ours, "rb", buffering=0) as screen:
        process = subprocess.Popen([sys.executable, EXAMPLE / "mnist_multiprocess.py", "1",
                                    "--data-dir", digits, "--epochs", "1"], stdout=theirs)
        os.close(theirs)
        shown = b""
        try:
            while piece := screen.read(4096):
                shown += piece
        except OSError:  # the last who had the terminal has gone
            pass
        assert process.wait(60) == 0
    assert re.search(rb"\r\[=+ *\] \d/4  \d+ images/s .*\r\x1b\[KTraining loss", shown), shown
