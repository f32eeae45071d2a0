"""The document about fleetrun: its script, and its commands with `tutti run` for fleetrun."""

import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).with_name("seed_fleetrun.py")
FLEETRUN = [sys.executable, "-m", "tutti.run"]


def run(command, folder, **environment):
    return subprocess.run(command, cwd=folder, env={**os.environ, **environment}, text=True,
                          capture_output=True, timeout=100)


@pytest.mark.parametrize("command, ranks", [
    ([], 1), ([*FLEETRUN, "--gpus=0,1"], 2), ([*FLEETRUN, "--nproc_per_node=3"], 3)])
def test_the_script(command, ranks, tmp_path):
    done = run([*(command or [sys.executable]), SCRIPT], tmp_path)
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"train_loss: (\S+), total", done.stdout)]
    assert len(losses) == 3 * (-(-1024 // ranks) // 64 // 4)  # of rank 0 alone
    assert losses[-1] < losses[0] and losses[-1] < 0.2
    if command:
        logs = sorted(path.name for path in (tmp_path / "log" / "last").glob("worker.*.log"))
        assert logs == [f"worker.{rank}.log" for rank in range(ranks)]


# Those of several machines are `tutti run`'s own tests.
@pytest.mark.parametrize("command, gpus, roles", [
    ("fleetrun --gpus=0 train.py", None, "1 worker"),
    ("fleetrun train.py", "0", "1 worker"),
    ("fleetrun --gpus=0,1,2,3 train.py", None, "4 workers"),
    ("fleetrun --server_num=1 --worker_num=4 train.py", None, "1 server, 4 workers"),
    ("fleetrun --server_num=2 --worker_num=4 train.py", "0,1,2,3", "2 servers, 4 workers"),
    ("fleetrun --server_num=2 --worker_num=2 train.py", "0", "2 servers, 2 workers"),
    ("fleetrun --server_num=2 --worker_num=2 --heter_worker_num=2 train.py", "0,1",
     "2 servers, 2 workers, 2 heter_workers"),
])
def test_the_commands(command, gpus, roles, tmp_path):
    (tmp_path / "train.py").write_text("")
    done = run([*FLEETRUN, "--dry-run", *shlex.split(command)[1:]], tmp_path,
               **({} if gpus is None else {"CUDA_VISIBLE_DEVICES": gpus}))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{roles} on ")
    assert "PADDLE_TRAINERS_NUM=" in done.stdout
