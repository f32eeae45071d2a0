"""The example's two programs as far as their options and files: what is wrong, help, and plots."""

import gzip
import json
import sys

import pytest

import launching
from mnist_programs import EXAMPLE, run

import options


def test_says_what_is_wrong_with_options():
    for wrong, reason in {("--epochs", 0): "'0' is not a number",
                          ("--spars", 0.1): "--spars 0.1: not an option of fp32",
                          ("--clip-norm", 1): "--clip-norm 1: not an option of fp32",
                          ("--momentum-correction",):
                          "--momentum-correction: not an option of fp32"}.items():
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
