#!/usr/bin/env python3
"""Parameter servers whose processes are started one by one, by Paddle's variables, or by tutti run."""

import os
import socket
import subprocess
import sys
import time
import unittest
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "launch"))
from job import JobTest, main  # noqa: E402

PROGRAM = sys.argv.pop()
PORT = 16000  # below those that the kernel gives to whoever asks for any, on all addresses


class StartedByHand(unittest.TestCase):
    """As the document of Paddle's parameter server starts them, in as many terminals."""

    def setUp(self):
        # An address that is this test's alone, so ports are free.
        self.host = f"127.{os.getpid() >> 16 & 127 | 128}.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"
        self.processes = {}
        self.addCleanup(self.end)

    def end(self):
        for process in self.processes.values():
            process.kill()
            process.communicate()

    def endpoints(self, servers):
        return ",".join(f"{self.host}:{PORT + i}" for i in range(servers))

    def start(self, name, servers, workers, *arguments, **variables):
        """A process: ("server", 0) or ("worker", 1)."""
        role, index = name
        place = ({"TRAINING_ROLE": "PSERVER", "POD_IP": self.host, "PADDLE_PORT": str(PORT + index)}
                 if role == "server" else
                 {"TRAINING_ROLE": "TRAINER", "PADDLE_TRAINER_ID": str(index)})
        self.processes[name] = subprocess.Popen(
            [PROGRAM, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **place, "PADDLE_PSERVERS_IP_PORT_LIST": self.endpoints(servers),
                 "PADDLE_TRAINERS_NUM": str(workers), **variables})

    def wait(self):
        """What each process printed, and its exit code."""
        results = {}
        self.logged = {}
        for name, process in self.processes.items():
            printed, self.logged[name] = process.communicate(timeout=60)
            results[name] = (printed, process.returncode)
        return results

    def test_they_meet_in_any_order_and_train(self):
        for mode in ("async", "sync"):
            with self.subTest(mode=mode):
                for name in (("worker", 1), ("server", 0), ("worker", 0), ("server", 1)):
                    self.start(name, 2, 2, "--mode", mode)
                for name, (printed, code) in self.wait().items():
                    self.assertEqual(code, 0, (name, printed))
                    self.assertEqual(printed, "trained\n" if name[0] == "worker" else "")

    def test_a_server_that_is_missing_is_listed_at_the_deadline(self):
        for name in (("worker", 1), ("server", 1), ("worker", 0)):
            self.start(name, 2, 2, "--timeout", 2)
        start = time.monotonic()
        results = self.wait()
        self.assertLess(time.monotonic() - start, 2 + 8)
        for index in (0, 1):
            printed, code = results["worker", index]
            self.assertEqual(code, 1)
            self.assertTrue(printed.startswith(f"lost: lost rank 2: server 0 ({self.host}:{PORT})"), printed)
        self.assertEqual(results["server", 1][1], 1)

    def test_a_worker_that_is_missing_is_listed_at_the_deadline(self):
        for name in (("worker", 0), ("server", 0), ("worker", 2)):
            self.start(name, 1, 3, "--timeout", 2)
        for name, (printed, code) in self.wait().items():
            self.assertEqual(code, 1, (name, printed))
            self.assertTrue(printed.startswith("lost: lost rank "), (name, printed))
            self.assertIn("worker 1", printed)

    def test_who_knows_another_secret_is_not_let_in(self):
        for name in (("worker", 0), ("server", 0)):
            self.start(name, 1, 2, "--timeout", 2, TUTTI_SECRET="shared")
        self.start(("worker", 1), 1, 2, "--timeout", 2, TUTTI_SECRET="guessed")
        results = self.wait()
        for name in (("worker", 0), ("server", 0)):
            printed, code = results[name]
            self.assertEqual(code, 1)
            self.assertTrue(printed.startswith("lost: lost rank "), (name, printed))
            self.assertIn("worker 1", printed)
        why = "their TUTTI_SECRET differs, or only one of them has any"
        self.assertEqual(results["worker", 1], (
            f"lost: lost rank 2: server 0 ({self.host}:{PORT}, has not let this worker in: {why}): "
            "not ready within 2.0 s\n", 1))
        said = [line for line in self.logged["server", 0].splitlines() if "let in" in line]
        self.assertEqual(len(said), 1, self.logged)
        self.assertIn(f"server 0 does not let in who is worker 1: {why}", said[0])
        for text in (*self.logged.values(), *(printed for printed, _ in results.values())):
            self.assertNotRegex(text, "shared|guessed")

    def test_who_was_given_other_servers_is_not_let_in(self):
        self.start(("server", 0), 1, 1, "--timeout", 2)
        self.start(("worker", 0), 2, 1, "--timeout", 2)
        self.assertIn(f"server 0 ({self.host}:{PORT}, has not let this worker in: they were given "
                      "different endpoints of servers), server 1 (", self.wait()["worker", 0][0])

    def test_who_shares_a_secret_is(self):
        for name in (("worker", 0), ("server", 0)):
            self.start(name, 1, 1, TUTTI_SECRET="shared")
        self.assertEqual(self.wait()["worker", 0], ("trained\n", 0))

    def test_other_options_on_one_are_a_mismatch_on_all(self):
        names = [("server", 0), ("server", 1), ("worker", 0), ("worker", 1)]
        for other in names:
            with self.subTest(other=other):
                for name in names:
                    self.start(name, 2, 2, "--seed", 8 if name == other else 7)
                for name, (printed, code) in self.wait().items():
                    self.assertEqual(code, 1, (name, printed))
                    self.assertTrue(printed.startswith("mismatch: "), (name, printed))
                    self.assertIn("seed 7", printed)
                    self.assertIn("seed 8", printed)

    def test_a_port_in_use_is_named(self):
        with socket.socket() as used:
            used.bind((self.host, PORT))
            used.listen()
            self.start(("server", 0), 1, 1)
            printed, code = self.wait()["server", 0]
        self.assertEqual((printed, code),
                         (f"cannot listen at {self.host}:{PORT}: Address already in use\n", 1))


class UnderTuttiRun(JobTest):
    def test_servers_and_workers_train(self):
        for roles in (("--server_num", 1, "--worker_num", 2),
                      ("--server_num", 2, "--worker_num", 1, "--heter_worker_num", 1)):
            with self.subTest(roles=roles):
                result = self.run_job(*roles, PROGRAM)
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertEqual(result.job.log("worker.0"), b"trained\n")

    def test_a_worker_that_dies_holds_nobody_up_where_others_keep_going(self):
        result = self.run_job("--keep-going", "--server_num", 1, "--worker_num", 3, PROGRAM, "--lost", 1)
        self.assertEqual(result.returncode, 128 + 9, result.stderr)
        self.assertIn("tutti run: worker 1 failed: signal 9 (SIGKILL); the others go on\n", result.stderr)
        for log in ("worker.0", "worker.2"):
            self.assertEqual(result.job.log(log), b"trained\n")
        self.assertIn(b"lost worker 1\n", result.job.log("server.0"))

    def test_a_server_that_dies_is_named_by_workers_that_keep_going(self):
        result = self.run_job("--keep-going", "--server_num", 2, "--worker_num", 2, PROGRAM, "--lost-server", 1)
        self.assertEqual(result.returncode, 128 + 9, result.stderr)
        self.assertRegex(result.stderr, r"server 1 \(rank 3 of 4\) on \S+ failed: signal 9")
        for log in ("worker.0", "worker.1"):
            self.assertIn(b"lost: lost rank 3: server 1: its process has ended\n", result.job.log(log))

    def test_a_worker_that_dies_ends_the_job_otherwise(self):
        result = self.run_job("--server_num", 1, "--worker_num", 3, PROGRAM, "--lost", 1)
        self.assertEqual(result.returncode, 128 + 9, result.stderr)


if __name__ == "__main__":
    main()
