"""Another package on PyPI has the import name tutti: what is said where it is in the way."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

import tutti

ROOT = pathlib.Path(__file__).parents[2]
OURS = pathlib.Path(tutti.__file__).parent


def run(folder, *arguments):
    """What a Python says that finds packages in `folder` first."""
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(folder), str(OURS.parent)]))
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=100,
                          env=environment)


def record(folder, name, files=("tutti/__init__.py",)):
    """What pip leaves of an installation."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))


@pytest.fixture
def mixed(tmp_path):
    """Both were installed into one folder: ours first, then the other over it."""
    shutil.copytree(OURS, tmp_path / "tutti", ignore=shutil.ignore_patterns("__pycache__"))
    record(tmp_path, "tutti-distopt", ["tutti/__init__.py", "tutti/opt.py"])
    record(tmp_path, "tutti")
    (tmp_path / "tutti" / "__init__.py").unlink()  # it may be a link
    (tmp_path / "tutti" / "__init__.py").write_text("# another's\n")
    return tmp_path


WHY = ("is not the package tutti of tutti-distopt, to which this module belongs. Another distribution, "
       "tutti, has installed a package of that name: pip uninstall tutti tutti-distopt, then install "
       "tutti-distopt alone")


@pytest.mark.parametrize("statement", ["from tutti import opt", "import tutti.info"])
def test_the_other_over_ours(mixed, statement):
    done = run(mixed, "-c", statement)
    assert done.returncode == 1
    assert f"{mixed}/tutti/__init__.py {WHY}" in done.stderr.splitlines()[-1]


def test_the_other_was_removed_again(mixed):
    """With it goes the file that both had; what is left imports as a package without content."""
    (mixed / "tutti" / "__init__.py").unlink()
    shutil.rmtree(mixed / "tutti-1.0.dist-info")
    # Without site-packages: a package with an __init__.py there would come first.
    done = subprocess.run([sys.executable, "-S", "-c", "from tutti import opt"], capture_output=True,
                          text=True, timeout=100, env=dict(os.environ, PYTHONPATH=str(mixed)))
    assert done.returncode == 1
    assert "is not the package tutti of tutti-distopt" in done.stderr.splitlines()[-1]


def test_ours_over_the_other(tmp_path):
    """Ours works, and python -m tutti.info tells what the next uninstallation will break."""
    record(tmp_path, "tutti")
    record(tmp_path, "damaged")
    (tmp_path / "damaged-1.0.dist-info" / "METADATA").unlink()
    done = run(tmp_path, "-m", "tutti.info")
    assert done.returncode == 0
    assert "Another distribution, tutti, has installed" in done.stdout
    (tmp_path / "tutti-1.0.dist-info" / "RECORD").write_text("else/__init__.py,,\n")
    assert "Another distribution" not in run(tmp_path, "-m", "tutti.info").stdout


def test_ours_without_its_extension(tmp_path):
    shutil.copytree(OURS, tmp_path / "tutti", ignore=shutil.ignore_patterns("__pycache__", "_core*"))
    record(tmp_path, "tutti")
    error = run(tmp_path, "-c", "import tutti").stderr.splitlines()[-1]
    assert "tutti's extension module cannot be loaded" in error
    assert "pip uninstall tutti tutti-distopt" in error


@pytest.mark.parametrize("program", ["mnist_dist.py", "mnist_multiprocess.py"])
def test_the_example_finds_only_the_other(tmp_path, program):
    (tmp_path / "tutti").mkdir()
    (tmp_path / "tutti" / "__init__.py").write_text("")
    done = run(tmp_path, ROOT / "examples" / "mnist_cnn" / program, "2")
    assert done.returncode == 1
    assert done.stderr == (f"mnist_dist: {tmp_path}/tutti is not the package tutti of "
                           "tutti-distopt\n"), done.stderr
