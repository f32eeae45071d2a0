"""python -m tutti.run: the launcher that was built with the package, and the Python that called it."""

import os
import subprocess
import sys


def run(*arguments, cwd):
    return subprocess.run([sys.executable, "-m", "tutti.run", *arguments], cwd=cwd, text=True,
                          capture_output=True, timeout=60)


def test_ranks_run_in_the_python_of_the_caller(tmp_path):
    (tmp_path / "rank.py").write_text(
        "import os, sys; print(sys.executable, os.environ['TUTTI_RANK']); sys.exit(int(sys.argv[1]))")
    result = run("-n", "2", "--tee", "all", "rank.py", "0", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == [f"[{rank}] {sys.executable} {rank}" for rank in (0, 1)]
    assert run("-n", "2", "rank.py", "5", cwd=tmp_path).returncode == 5


def test_without_the_program_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.environ["PYTHONPATH"])
    code = ("import tutti.run as r, importlib.metadata as m\n"
            "r.__file__ = '/nowhere/tutti/run.py'\n"
            "m.files = lambda name: None\n"
            "r.launcher()")
    result = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True)
    assert result.returncode == 1
    assert result.stderr == "tutti.run: the program tutti was not installed with tutti-distopt\n"
