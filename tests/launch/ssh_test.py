#!/usr/bin/env python3
"""Jobs on machines that are reached by plain ssh, as a user has it who has set nothing:
ssh_test.py RANKS (cluster/ranks.cpp) [MNIST_DIST]
"""

import json
import os
import re
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).absolute().parents[1] / "example"))

import clusters
import job
import short_mnist
from clusters import cluster
from on_head import OnHead

HOSTS = "node1:2,node2:2"
SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
# Every machine has the folder $0 as its /etc/ssh, for ssh and for its server.
CONFIGURED = 'mount --bind "$0" /etc/ssh && exec "$@"'
SERVED = f'mount -t tmpfs tmpfs /run && mkdir /run/sshd && {CONFIGURED}'
KEY = "ssh_host_ed25519_key"  # the server's, and the user's as well


def configure(folder):
    """What two machines have once a user has been at step 1 of docs/clusters.md."""
    folder.mkdir()
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / KEY], check=True)
    (folder / "sshd_config").write_text(
        f"AddressFamily inet\nHostKey /etc/ssh/{KEY}\nAuthorizedKeysFile /etc/ssh/{KEY}.pub\n"
        "PermitRootLogin yes\nStrictModes no\nUsePAM no\nPidFile none\nSubsystem sftp internal-sftp\n"
        f"SetEnv PATH={os.environ['PATH']}\n")
    (folder / "ssh_config").write_text(f"IdentityFile /etc/ssh/{KEY}\n")
    (folder / "ssh_known_hosts").write_text(f"node* {(folder / f'{KEY}.pub').read_text()}")


class Ssh(OnHead):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        machines = cls.machines
        cls.variables = {}
        configure(machines.folder / "ssh")
        machines.tutti = machines.on_head(
            "tutti-ssh", ["sh", "-c", CONFIGURED, str(machines.folder / "ssh"), job.TUTTI])
        cls.shell = machines.on_head("sh-ssh", ["sh", "-c", CONFIGURED, str(machines.folder / "ssh"), "sh", "-ec"])
        for node in machines.nodes:
            server = subprocess.Popen(cluster.enter(machines.folder, node, [
                "sh", "-c", SERVED, str(machines.folder / "ssh"), SSHD, "-D", "-e"]),
                stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            cls.addClassCleanup(server.wait)  # after it has ended with its machine, and with it:
            cls.addClassCleanup(server.stderr.close)
            cls.addClassCleanup(server.kill)
            said = server.stderr.readline()
            assert said.startswith("Server listening on "), said

    def test_ranks_join(self):
        result = self.run_job("--hosts", HOSTS, RANKS, "join", self.folder)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual([(self.folder / f"rank.{rank}").read_text() for rank in range(4)],
                         ["done"] * 4)

    def test_files_are_copied(self):
        """As docs/clusters.md says, but to another path, since these machines have one file system."""
        text = (Path(__file__).parents[2] / "docs/clusters.md").read_text(encoding="utf-8")
        commands = "\n".join(re.findall(r"^    ((?:ssh b mkdir|scp) .*)$", text, re.MULTILINE))
        self.assertEqual(commands.count("\n"), 1, commands)
        there = self.folder / "there"
        program = Path("build/release/bin/program")
        (self.folder / program).parent.mkdir(parents=True)
        for content in ("first", "second"):
            (self.folder / program).write_text(content)
            subprocess.run([self.shell, re.sub(r"\bb(?=:| mkdir)", "node1", commands).replace("$PWD", str(there))],
                           cwd=self.folder, check=True, timeout=60)
            self.assertEqual((there / program).read_text(), content)

    def test_a_machine_without_a_server_is_named(self):
        result = self.run_job("--hosts", "node1:1,head:1,10.213.77.9:1", "true")
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertRegex(result.stderr, "^tutti run: 10.213.77.9: ssh: connect to host 10.213.77.9 "
                                        "port 22: No route to host\\s*$")

    def test_training(self):
        if not MNIST_DIST:
            self.skipTest("mnist_dist was not built")
        log = self.folder / "run.json"
        options = ["--epochs", "1", "--batch-size", "16", "--json", log]
        if short_mnist.is_there():
            short_mnist.write(self.folder, train=6000, t10k=1000)
            options += ["--data-dir", self.folder]
        (self.folder / "hosts").write_text("node1 slots=2\nnode2 slots=2\n")
        result = self.run_job("--hostfile", "hosts", MNIST_DIST, *options)
        self.assertEqual(result.returncode, 0, result.stderr)
        epoch = json.loads(log.read_text().splitlines()[-1])
        self.assertEqual(epoch["world_size"], 4)
        self.assertGreater(epoch["eval_accuracy"], 0.8)


if __name__ == "__main__":
    RANKS, MNIST_DIST = [*sys.argv[1:], None][:2]
    if not clusters.is_possible() or not SSHD or not shutil.which("ssh"):
        print("SKIPPED: no network namespaces here (they need root and iproute2), or no sshd "
              "(openssh-server): nothing was tested")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
