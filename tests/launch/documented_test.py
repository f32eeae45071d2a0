#!/usr/bin/env python3
"""Every command of docs/launching.md and README.md is understood, and means as many ranks as it says."""

import os
import re
import shlex
from pathlib import Path

from job import JobTest, main

ROOT = Path(__file__).absolute().parents[2]
DOCUMENTS = {"docs/launching.md": 19, "README.md": 4}  # each has so many commands, or more
# By what the command contains: how many ranks it starts.
RANKS = {"--hosts a:2,b:2": 4, "--hosts a,b -n 4": 8, "-n 4 train": 4, "-n 2": 2, "two_nodes": 4,
         "--server_num=1 --worker_num=4": 5, "--server_num 1 --worker_num 4": 5,
         "--server_num=2 --worker_num=4": 6, "--heter_worker_num=2": 6,
         "--server_num=2 --worker_num=2": 4, "198.51.100.2,198.51.100.2": 6,
         "198.51.100.2:6173": 4, "--ips": 8, "--gpus=0,1,2,3": 4, "--gpus=0 ": 1,
         "CUDA_VISIBLE_DEVICES=0,1,2,3": 4}


class Documented(JobTest):
    def setUp(self):
        super().setUp()
        (self.folder / "train.py").touch()
        (self.folder / "hostfiles").symlink_to(ROOT / "hostfiles")
        (self.folder / "build/release/bin").mkdir(parents=True)
        (self.folder / "build/release/bin/mnist_dist").symlink_to("/bin/true")

    def test_commands(self):
        for document, few in DOCUMENTS.items():
            commands = [line.split("#")[0].strip() for line in (ROOT / document).read_text().splitlines()
                        if re.match(r"    (\w+=\S+ )?tutti run ", line)]
            self.assertGreaterEqual(len(commands), few)
            for command in commands:
                with self.subTest(command=command):
                    self.means_what_it_says(command)

    def means_what_it_says(self, command):
        # The first machine is this one, or it would leave the work to that.
        command = command.replace("xx.xx.xx.xx", os.uname().nodename)
        command = command.replace("yy.yy.yy.yy", "198.51.100.2")
        words = shlex.split(command)
        variables = dict(word.split("=", 1) for word in words[: words.index("tutti")])
        words = words[words.index("run") + 1 :]
        result = self.run_job("--dry-run", *words, env=variables)
        self.assertEqual(result.returncode, 0, result.stderr)
        expected = next((n for part, n in RANKS.items() if part in command), None)
        self.assertEqual(len(re.findall(r": rank \d+", result.stdout)), expected, command)


if __name__ == "__main__":
    main()
