"""The script of the document about fleetrun, alone and under `tutti run`, and the document's commands."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

import launching

SCRIPT = pathlib.Path(__file__).with_name("seed_fleetrun.py")
FLEETRUN = [sys.executable, "-m", "tutti.run"]


@pytest.mark.parametrize("command, ranks", [
    ([], 1), ([*FLEETRUN, "--gpus=0,1"], 2), ([*FLEETRUN, "--nproc_per_node=3"], 3)])
def test_the_script(command, ranks, tmp_path):
    done = subprocess.run([*(command or [sys.executable]), SCRIPT], cwd=tmp_path, text=True,
                          capture_output=True, timeout=100)
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"train_loss: (\S+), total", done.stdout)]
    assert len(losses) == 10 * (-(-1024 // ranks) // 64 // 4)  # of rank 0 alone
    assert losses[-1] < losses[0] and losses[-1] < 0.2
    if command:
        logs = sorted(path.name for path in (tmp_path / "log" / "last").glob("worker.*.log"))
        assert logs == [f"worker.{rank}.log" for rank in range(ranks)]


REPORT = """
import json, os, sys
from tutti import Communicator
names = ("TRAINING_ROLE", "PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM", "PADDLE_CURRENT_ENDPOINT", "PADDLE_PORT",
         "FLAGS_selected_gpus")
with Communicator() as world:
    told = {name: os.environ[name] for name in names if name in os.environ}
    print(json.dumps([os.environ["TUTTI_ROLE"], world.global_rank, world.world_size, told, sys.argv[1:]]))
"""
HOST = "127.0.0.1"


# Each command of the document that one machine can do, with its own address for xx.xx.xx.xx.
@pytest.mark.parametrize("command, visible, roles", [
    ("--gpus=0", None, {"worker": 1}),
    ("", "0", {"worker": 1}),
    ("--gpus=0,1,2,3", None, {"worker": 4}),
    ("", "0,1,2,3", {"worker": 4}),
    (f"--ips={HOST} --gpus=0,1,2,3", None, {"worker": 4}),
    (f"--ips={HOST}", "0,1,2,3", {"worker": 4}),
    ("--server_num=1 --worker_num=4", None, {"worker": 4, "server": 1}),
    (f"--servers={HOST}:PORT,{HOST}:PORT --workers={HOST},{HOST},{HOST},{HOST}", None,
     {"worker": 4, "server": 2}),
    (f"--servers={HOST}:PORT,{HOST}:PORT --workers={HOST}:PORT,{HOST}:PORT", None,
     {"worker": 2, "server": 2}),
    ("--server_num=2 --worker_num=4", "0,1,2,3", {"worker": 4, "server": 2}),
    ("--server_num=2 --worker_num=2", "0", {"worker": 2, "server": 2}),
    (f"--servers={HOST}:PORT,{HOST}:PORT --workers={HOST}:PORT,{HOST}:PORT", "0",
     {"worker": 2, "server": 2}),
    ("--server_num=2 --worker_num=2 --heter_worker_num=2", "0,1",
     {"worker": 2, "server": 2, "heter_worker": 2}),
    ("--server_num=1 --worker_num=2 --http_port=PORT --log_dir=own", None, {"worker": 2, "server": 1}),
    ("--nproc_per_node=2", None, {"worker": 2}),
])
def test_the_commands(command, visible, roles, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(REPORT)
    ports = launching.free_ports(command.count("PORT")) if "PORT" in command else []
    named = [str(port) for port in ports]
    for port in named:
        command = command.replace("PORT", port, 1)
    environment = {**os.environ} if visible is None else {**os.environ, "CUDA_VISIBLE_DEVICES": visible}
    done = subprocess.run([*FLEETRUN, *command.split(), script, "--lr", "0.1"], cwd=tmp_path, text=True,
                          capture_output=True, timeout=100, env=environment)
    assert done.returncode == 0, done.stderr
    logs = tmp_path / ("own" if "log_dir" in command else "log") / "last"
    count = sum(roles.values())
    found = {}
    for role, ranks in roles.items():
        for index in range(ranks):
            said, rank, size, told, arguments = json.loads((logs / f"{role}.{index}.log").read_text())
            assert (said, size, arguments) == (role, count, ["--lr", "0.1"])
            found[rank] = told
            assert told["TRAINING_ROLE"] == {"worker": "TRAINER", "server": "PSERVER",
                                             "heter_worker": "HETER_TRAINER"}[role]
            if role == "server" and "--servers" in command:
                assert told["PADDLE_PORT"] == named[index]
            if role == "worker":
                assert told["PADDLE_TRAINER_ID"] == str(index)
            if "--workers" in command and len(named) == 4 and role == "worker":
                assert told["PADDLE_CURRENT_ENDPOINT"] == f"{HOST}:{named[2 + index]}"
    assert sorted(found) == list(range(count)) and len(list(logs.glob("*.log"))) == count
