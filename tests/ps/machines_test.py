#!/usr/bin/env python3
"""Parameter servers on several machines, which are network namespaces: machines_test.py PS_JOB."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "launch"))
import clusters  # noqa: E402
import job  # noqa: E402
from on_head import OnHead  # noqa: E402

PROGRAM = sys.argv.pop()
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


if __name__ == "__main__":
    if not clusters.is_possible():
        print("SKIPPED: no network namespaces here (they need root and iproute2)")
        sys.exit(77)
    job.main()
