#!/usr/bin/env python3
"""Parameter servers on several machines, which are network namespaces: machines_test.py PS_JOB."""

import importlib.util
import re
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "launch"))
import clusters  # noqa: E402
import job  # noqa: E402
from on_head import OnHead  # noqa: E402

PROGRAM = sys.argv.pop()
SEED = Path(__file__).absolute().parent.parent / "python" / "seed_fleet.py"
PLACES = ("--servers", "node1:6170,node2:6170", "--workers", "node1,node2,node2")


class OnSeveralMachines(OnHead):
    def test_they_train_at_the_servers_endpoints_without_mpi(self):
        for mode in ("async", "sync"):
            with self.subTest(mode=mode):
                result = self.run_job(*PLACES, PROGRAM, "--mode", mode)
                self.assertEqual(result.returncode, 0, result.stderr)
                for worker in ("worker.0", "worker.1", "worker.2"):
                    self.assertEqual(result.job.log(worker), b"trained\n")

    def test_a_worker_that_dies_holds_nobody_up(self):
        result = self.run_job("--keep_going", *PLACES, PROGRAM, "--lost", 1)
        self.assertEqual(result.returncode, 128 + 9, result.stderr)
        self.assertIn("worker 1 failed: signal 9 (SIGKILL); the others go on\n", result.stderr)
        for worker in ("worker.0", "worker.2"):
            self.assertEqual(result.job.log(worker), b"trained\n")

    def by_hand(self):
        """The document's four processes, each started on its machine by its variables; what they
        printed."""
        addresses = [f"10.213.77.{number}" for number in (1, 2)]
        servers = ",".join(f"{address}:36000" for address in addresses)
        common = f"PADDLE_PSERVERS_IP_PORT_LIST={servers} PADDLE_TRAINERS_NUM=2"
        started = []
        for number, address in enumerate(addresses):
            for own in (f"TRAINING_ROLE=TRAINER PADDLE_TRAINER_ID={number}",
                        f"TRAINING_ROLE=PSERVER POD_IP={address} PADDLE_PORT=36000"):
                command = f"env {common} {own} {sys.executable} -u {SEED} --is_cloud=1"
                started.append(subprocess.Popen(
                    [*self.machines.remote_shell.split(), self.machines.nodes[number], command],
                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
                self.addCleanup(started[-1].kill)
        outputs = [process.communicate(timeout=job.LIMIT) for process in started]
        ends = [process.returncode for process in started]
        self.assertEqual(ends, [0] * len(started), "\n".join(errors for _, errors in outputs))
        return "".join(output for output, _ in outputs)

    @unittest.skipUnless(importlib.util.find_spec("tutti"), "the Python module is not built")
    def test_the_document_s_script_by_hand_and_by_one_command(self):
        def results(output):
            return sorted(re.findall(r"worker \d of 2, .*: (loss \S+, bias \S+)", output))

        wanted = results(self.by_hand())
        self.assertEqual(len(wanted), 2)
        result = self.run_job("--servers", "node1:6170,node2:6170", "--workers", "node1,node2",
                              sys.executable, "-u", SEED)
        self.assertEqual(result.returncode, 0, result.stderr)
        output = "".join(result.job.log(f"worker.{number}").decode() for number in (0, 1))
        self.assertEqual(results(output), wanted)


if __name__ == "__main__":
    if not clusters.is_possible():
        print("SKIPPED: no network namespaces here (they need root and iproute2)")
        sys.exit(77)
    job.main()
