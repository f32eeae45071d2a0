"""The example's two programs, for an epoch on real MNIST."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

import launching

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "mnist_cnn"
needs_mnist = pytest.mark.skipif("TUTTI_MNIST_DIR" not in os.environ,
                                 reason="TUTTI_MNIST_DIR does not say where MNIST is")


def run(*command):
    return subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=280)


@needs_mnist
@pytest.mark.parametrize("launcher", ["mpiexec", "multiprocessing"])
def test_an_epoch(launcher, tmp_path):
    output = tmp_path / "run.json"
    options = ["--epochs", 1, "--json", output]
    if launcher == "mpiexec":
        options += ["--dist-option", "fp16"]
        done = run(*launching.MPIEXEC, "-n", 2, sys.executable, EXAMPLE / "mnist_dist.py", *options)
    else:
        done = run(sys.executable, EXAMPLE / "mnist_multiprocess.py", 2, *options)
    assert done.returncode == 0, done.stderr
    number = r"\d+\.\d{6}"
    assert re.fullmatch(
        rf"Starting Epoch 0:\nTraining loss = {number}, training accuracy = {number}\n"
        rf"Evaluation accuracy = {number}, Elapsed Time = {number}s\n", done.stdout), done.stdout
    (epoch,) = map(json.loads, output.read_text().splitlines())
    assert epoch["eval_accuracy"] > 0.95 and epoch["eval_count"] == 10000
    assert (epoch["world_size"], epoch["epoch"]) == (2, 0)


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


def test_says_what_is_wrong(tmp_path):
    for program in (["mnist_dist.py"], ["mnist_multiprocess.py", 2]):
        done = run(sys.executable, EXAMPLE / program[0], *program[1:], "--bogus")
        assert done.returncode != 0 and "--bogus" in done.stderr
        done = run(sys.executable, EXAMPLE / program[0], *program[1:], "--data-dir", tmp_path)
        assert done.returncode == 1 and "train-images-idx3-ubyte: no such file" in done.stderr


def test_plot(tmp_path):
    pytest.importorskip("matplotlib")
    lines = [json.dumps(dict(epoch=e, train_loss=10.0 / (e + 1), eval_accuracy=0.9, world_size=2,
                             dist_option="fp32")) for e in range(3)]
    (tmp_path / "run.json").write_text("\n".join(lines))
    done = run(sys.executable, EXAMPLE / "mnist_dist.py", "--plot", tmp_path / "curves.png",
               tmp_path / "run.json")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
