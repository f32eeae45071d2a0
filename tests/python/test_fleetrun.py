"""The script of the document about fleetrun, alone and under `tutti run`."""

import pathlib
import re
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).with_name("seed_fleetrun.py")
FLEETRUN = [sys.executable, "-m", "tutti.run"]


@pytest.mark.parametrize("command, ranks", [
    ([], 1), ([*FLEETRUN, "--gpus=0,1"], 2), ([*FLEETRUN, "--nproc_per_node=3"], 3)])
def test_the_script(command, ranks, tmp_path):
    done = subprocess.run([*(command or [sys.executable]), SCRIPT], cwd=tmp_path, text=True,
                          capture_output=True, timeout=100)
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"train_loss: (\S+), total", done.stdout)]
    assert len(losses) == 3 * (-(-1024 // ranks) // 64 // 4)  # of rank 0 alone
    assert losses[-1] < losses[0] and losses[-1] < 0.2
    if command:
        logs = sorted(path.name for path in (tmp_path / "log" / "last").glob("worker.*.log"))
        assert logs == [f"worker.{rank}.log" for rank in range(ranks)]
