#!/usr/bin/env python3
"""How jobs under mpiexec end when a rank has stopped: mpi_ends_test.py PROGRAM MPIEXEC."""

import concurrent.futures
import re
import subprocess
import sys
import time
import unittest

PROGRAM = sys.argv[1]
MPIEXEC = (sys.argv[2], "--oversubscribe", "--bind-to", "none")
TIMEOUT = 5  # seconds: the longest deadline that passes in a job
FAREWELL = 5  # what MPI_Finalize waits for the others after a loss
# What mpiexec takes to start and to end a job, on a machine that does other things as well.
GRACE = 20


class Job:
    """A job that ran: `text` is its output, `status` its exit status."""

    def __init__(self, stage, ranks, layout=None):
        command = [*MPIEXEC, "-n", str(ranks)]
        if layout:
            command = list(MPIEXEC)
            for host in layout:
                command += ["-n", "1", "-x", f"TUTTI_HOST_ID={host}", PROGRAM, stage, ":"]
            command.pop()
        else:
            command += [PROGRAM, stage]
        start = time.monotonic()
        done = subprocess.run(command, stdout=subprocess.PIPE, timeout=100,
                              stderr=subprocess.STDOUT, text=True, check=False)
        self.took = time.monotonic() - start
        self.status = done.returncode
        self.text = done.stdout
        self.said = dict(re.findall(r"^rank (\d) (.*)$", done.stdout, re.MULTILINE))


# Stage, number of ranks, and the hosts that they pretend to be on.
JOBS = {
    "none": ("none", 3, None),
    "step": ("step", 3, None),
    "part": ("part", 3, None),
    "step on two hosts": ("step", 3, "aab"),
    "part on two hosts": ("part", 3, "aab"),
    "init": ("init", 3, None),
    "connect": ("connect", 3, None),
    "own": ("own", 3, None),
    "exit": ("exit", 3, None),
    "exit on two hosts": ("exit", 3, "aab"),
}


class Ends(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with concurrent.futures.ThreadPoolExecutor(3) as pool:  # they mostly wait
            runs = {name: pool.submit(Job, *what) for name, what in JOBS.items()}
            cls.jobs = {name: run.result() for name, run in runs.items()}

    def test_nobody_stops(self):
        job = self.jobs["none"]
        self.assertEqual(job.status, 0, job.text)
        self.assertEqual(list(job.said.values()), ["ended"] * 3, job.text)

    def test_the_survivors_name_the_stopped_rank_and_the_job_ends(self):
        for name, job in self.jobs.items():
            if name == "none":
                continue
            with self.subTest(name):
                # mpiexec ends the others when the first has gone.
                said = [text for rank, text in job.said.items() if rank != "2"]
                self.assertTrue(said, job.text)
                for text in said:
                    self.assertRegex(text, "^lost 2: ", job.text)
                self.assertNotEqual(job.status, 0, job.text)
                self.assertLess(job.took, TIMEOUT + FAREWELL + GRACE, job.text)

    def test_mpi_init_has_a_deadline(self):
        self.assertIn("did not come to MPI_Init within 5.0 s", self.jobs["init"].text)

    def test_a_program_that_finalises_mpi_is_told_what_to_do(self):
        for name in ("connect", "own"):
            self.assertIn("end it with std::_Exit(1)", self.jobs[name].text)
            self.assertIn("did not come to MPI_Finalize", self.jobs[name].text)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
