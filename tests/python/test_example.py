"""The example's two programs, for an epoch on real MNIST."""

import gzip
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
import seed_mnist  # which finds the example

import options

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


@pytest.fixture
def digits(tmp_path):
    """A folder with a few images, which are the squares of seed_mnist.py."""
    arrays = seed_mnist.load_dataset()
    for part, images, labels in (("train", *arrays[:2]), ("t10k", *arrays[2:])):
        for kind, array in (("images", images[:200]), ("labels", labels[:200].astype(numpy.uint8))):
            (tmp_path / f"{part}-{kind}-idx{array.ndim}-ubyte").write_bytes(
                bytes((0, 0, 8, array.ndim)) + numpy.array(array.shape, ">u4").tobytes()
                + array.tobytes())
    return tmp_path


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


def test_says_what_is_wrong_with_options():
    for wrong, reason in {("--epochs", 0): "'0' is not a number",
                          ("--clip-norm", 1): "not an option of fp32"}.items():
        with pytest.raises(options.OptionError, match=reason):
            options.parse_options([*map(str, wrong)])


@pytest.mark.parametrize("launcher", ["mpiexec", "multiprocessing", "alone"])
def test_one_rank_says_what_is_wrong(launcher, digits, tmp_path):
    (tmp_path / "foreign").write_text("no checkpoint")
    (tmp_path / "link").symlink_to("foreign")
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(bytes(100))[:-9])
    data = ["--data-dir", digits]
    cases = [(["--bogus"], "unrecognized arguments: --bogus"),
             ([*data, "--resume", tmp_path / "foreign"], "foreign: not a file that tutti saved"),
             (["--data-dir", tmp_path / "none"], "none: no such folder"),
             (["--data-dir", tmp_path / "cut"], "idx3-ubyte.gz: cannot be read"),
             ([*data, "--json", "none/result"], "'none/result'"),
             ([*data, "--json", "/dev/null"], "Cannot be replaced: is not a regular file"),
             ([*data, "--save", "none/model"], "'none/model'"),
             ([*data, "--save", tmp_path / "link"], "Cannot be replaced: is a symbolic link"),
             ([*data, "--resume", tmp_path / "none"], "No such file")]
    for wrong, reason in cases if launcher == "multiprocessing" else cases[:2]:
        if launcher == "mpiexec":
            done = run(*launching.MPIEXEC, "-n", 3, sys.executable, EXAMPLE / "mnist_dist.py",
                       *wrong)
        elif launcher == "multiprocessing":
            done = run(sys.executable, EXAMPLE / "mnist_multiprocess.py", 2, *wrong)
        else:
            done = run(sys.executable, EXAMPLE / "mnist_dist.py", *wrong)
        said = [line for line in done.stderr.splitlines() if line.startswith("mnist_dist: ")]
        assert len(said) == 1 and reason in said[0], done.stderr
        assert "Traceback" not in done.stderr
        assert done.returncode == (2 if "--bogus" in wrong else 1)


def test_help():
    for words, text in {("--help",): "RANKS [the options", (2, "--help"): "--epochs N"}.items():
        done = run(sys.executable, EXAMPLE / "mnist_multiprocess.py", *words)
        assert (done.returncode, done.stderr) == (0, "") and text in done.stdout


def test_plot(tmp_path):
    pytest.importorskip("matplotlib")
    lines = [json.dumps(dict(epoch=e, train_loss=10.0 / (e + 1), eval_accuracy=0.9, world_size=2,
                             dist_option="fp32")) for e in range(3)]
    (tmp_path / "run.json").write_text("\n".join(lines))
    done = run(sys.executable, EXAMPLE / "mnist_dist.py", "--plot", tmp_path / "curves.png",
               tmp_path / "run.json")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_plot_says_what_is_wrong(tmp_path):
    """The file that is missing, or matplotlib."""
    done = run(sys.executable, EXAMPLE / "mnist_dist.py", "--plot", tmp_path / "curves.png",
               tmp_path / "none.json")
    assert done.returncode == 1 and done.stderr.startswith("mnist_dist: --plot: ")
    assert "Traceback" not in done.stderr


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
