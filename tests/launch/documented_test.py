#!/usr/bin/env python3
"""Every command of docs/launching.md, docs/clusters.md and README.md that starts ranks is understood, and means as many
ranks as it says."""

import os
import re
import shlex
import subprocess
from pathlib import Path

from job import JobTest, main

ROOT = Path(__file__).absolute().parents[2]
DOCUMENTS = {"docs/launching.md": 19, "docs/clusters.md": 4, "README.md": 4}  # each has so many commands, or more
# By what the command contains: how many ranks it starts.
RANKS = {"--hosts a:2,b:2": 4, "--hosts a,b -n 4": 8, "-n 4 train": 4, "-n 2": 2, "two_nodes": 4,
         "--server_num=1 --worker_num=4": 5, "--server_num 1 --worker_num 4": 5,
         "--server_num=2 --worker_num=4": 6, "--heter_worker_num=2": 6,
         "--server_num=2 --worker_num=2": 4, "198.51.100.2,198.51.100.2": 6,
         "198.51.100.2:6173": 4, "--ips": 8, "--gpus=0,1,2,3": 4, "--gpus=0 ": 1,
         "CUDA_VISIBLE_DEVICES=0,1,2,3": 4, "--hostfile hosts ": 4, "tutti run train.py": 4}
BY_HAND = 3  # commands of docs/clusters.md that give mpiexec a hostfile
# Of the batch script there.
SLURM = {"SLURM_JOB_NODELIST": f"{os.uname().nodename},b", "SLURM_NTASKS": "4", "SLURM_TASKS_PER_NODE": "2(x2)"}


def commands_of(document, word):
    """Those that begin with `word`, or set variables for it, without their comments."""
    lines = (ROOT / document).read_text(encoding="utf-8").splitlines()
    return [line.split("#")[0].strip() for line in lines if re.match(rf"    (\w+=\S+ )*{word} ", line)]


def hostfile_of(document):
    """The lines of one that it shows."""
    return re.findall(r"^    (\w+ slots=\d+)$", (ROOT / document).read_text(encoding="utf-8"), re.MULTILINE)


class Documented(JobTest):
    def setUp(self):
        super().setUp()
        (self.folder / "train.py").touch()
        (self.folder / "train").symlink_to("/bin/true")
        (self.folder / "hostfiles").symlink_to(ROOT / "hostfiles")
        (self.folder / "hosts").write_text("".join(f"{line}\n" for line in hostfile_of("docs/clusters.md")))
        (self.folder / "build/release/bin").mkdir(parents=True)
        (self.folder / "build/release/bin/mnist_dist").symlink_to("/bin/true")

    def test_commands(self):
        for document, few in DOCUMENTS.items():
            commands = commands_of(document, "tutti run")
            self.assertGreaterEqual(len(commands), few)
            for command in commands:
                with self.subTest(command=command):
                    self.means_what_it_says(command)

    def test_the_same_by_hand(self):
        """What docs/clusters.md gives mpiexec: it places two ranks on each of two machines."""
        commands = [command for command in commands_of("docs/clusters.md", "mpiexec") if "--hostfile hosts" in command]
        self.assertEqual(len(commands), BY_HAND)
        for command in commands:
            with self.subTest(command=command):
                words = ["mpiexec", "--do-not-launch", "--display-map", *shlex.split(command)[1:]]
                shown = subprocess.run(words, cwd=self.folder, capture_output=True, text=True, timeout=60).stdout
                places = re.findall(r"Data for node: (\w+)\s.*Num procs: (\d+)", shown)
                self.assertEqual(places, [("a", "2"), ("b", "2")], shown)

    def test_settings_of_open_mpi(self):
        """What docs/clusters.md sets is known to Open MPI: it takes any name, and heeds none that it does not know."""
        text = (ROOT / "docs/clusters.md").read_text(encoding="utf-8")
        named = set(re.findall(r"(?:btl_tcp|oob_tcp|plm_rsh)_\w+", text))
        shown = subprocess.run(["ompi_info", "--all", "--parsable"], capture_output=True, text=True, timeout=60).stdout
        self.assertGreaterEqual(len(named), 5)
        self.assertEqual([name for name in sorted(named) if f":param:{name}:" not in shown], [])

    def means_what_it_says(self, command):
        # The first machine is this one, or it would leave the work to that.
        command = command.replace("xx.xx.xx.xx", os.uname().nodename)
        command = command.replace("yy.yy.yy.yy", "198.51.100.2")
        words = shlex.split(command)
        variables = dict(word.split("=", 1) for word in words[: words.index("tutti")])
        words = words[words.index("run") + 1 :]
        variables |= SLURM if command == "tutti run train.py" else {}
        result = self.run_job("--dry-run", *words, env=variables)
        self.assertEqual(result.returncode, 0, result.stderr)
        expected = next((n for part, n in RANKS.items() if part in command), None)
        self.assertEqual(len(re.findall(r": rank \d+", result.stdout)), expected, command)


if __name__ == "__main__":
    main()
