#!/usr/bin/env python3
"""How jobs end with --keep_going, and who is stopped then: others go on, and nobody waits forever."""

import os
import signal
import time

from job import JobTest, has_nothing_to_do, main, parent_of, state_of, wait_until


class KeepGoing(JobTest):
    def test_with_keep_going_the_other_workers_go_on(self):
        script = self.script("""
case $TUTTI_ROLE.$TUTTI_ROLE_INDEX in
  worker.1) echo the cause >&2; touch failing; exit 7;;
  worker.*) while [ ! -e failed ]; do sleep 0.01; done; echo went on; exit 0;;
  *) trap 'exit 0' TERM; while :; do sleep 0.01; done;;
esac""")
        job = self.start("--keep-going", "--server_num", 1, "--worker_num", 3, script)
        wait_until((self.folder / "failing").exists)
        wait_until(lambda: len(job.ranks()) == 3)
        (self.folder / "failed").touch()
        result = job.wait()
        self.assertEqual(result.returncode, 7, result.stderr)
        self.assertIn("tutti run: worker 1 failed: exit code 7; the others go on\n", result.stderr)
        self.assertIn("worker 1 (rank 1 of 4)", result.stderr)
        self.assertIn("\n  | the cause\n", result.stderr)
        self.assertEqual(job.log("worker.2"), b"went on\n")

    def test_with_keep_going_a_server_s_failure_ends_the_job(self):
        script = self.script('[ $TUTTI_ROLE = server ] && exit 3; sleep 1000')
        result = self.run_job("--keep-going", "--server_num", 1, "--worker_num", 2, script)
        self.assertEqual(result.returncode, 3)
        self.assertIn("told to end: worker 0, worker 1", result.stderr)

    def test_with_keep_going_workers_have_time_to_say_that_a_server_is_lost(self):
        script = self.script("""
if [ $TUTTI_ROLE = server ]; then
    echo 'ends by itself' >&$TUTTI_PROGRESS_FD
    while [ ! -e ready.0 ] || [ ! -e ready.1 ]; do sleep 0.01; done
    exit 3
fi
trap 'echo asked; exit 0' TERM
touch ready.$TUTTI_RANK
while [ ! -e go ]; do sleep 0.01; done
if [ $TUTTI_RANK = 0 ]; then sleep 0.3; echo server 0 is lost; exit 1; fi
while :; do sleep 0.01; done""")
        job = self.start("--keep-going", "--server_num", 1, "--worker_num", 2, script,
                         env={"TUTTI_TIMEOUT": "2.5"})
        self.read_until(job, b"tutti run: server 0 failed: exit code 3; workers have 2.5 s to say so and end\n")
        (self.folder / "go").touch()
        result = job.wait()
        self.assertEqual(result.returncode, 3, result.stderr)
        self.assertIn("server 0 (rank 2 of 3)", result.stderr)
        self.assertRegex(result.stderr, r"failed as well: worker 0 [0-9.]+ m?s later \(exit code 1\)")
        self.assertEqual(job.log("worker.0"), b"server 0 is lost\n")
        self.assertEqual(job.log("worker.1"), b"asked\n")
        self.assertEqual(job.processes(), {}, "left behind")

    def test_workers_have_that_time_also_if_the_job_is_stopped_meanwhile(self):
        script = self.script("""
if [ $TUTTI_ROLE = server ]; then
    echo 'ends by itself' >&$TUTTI_PROGRESS_FD
    while [ ! -e ready.0 ]; do sleep 0.01; done
    exit 3
fi
trap 'echo asked; exit 0' TERM
touch ready.0
while [ ! -e go ]; do sleep 0.01; done
sleep 0.2
echo server 0 is lost
exit 1""")
        job = self.start("--keep-going", "--server_num", 1, "--worker_num", 1, script,
                         env={"TUTTI_TIMEOUT": "1.5"}, limit=os.setpgrp)
        self.read_until(job, b"workers have 1.5 s to say so and end\n")
        job.process.send_signal(signal.SIGTSTP)
        wait_until(lambda: state_of(job.process.pid) == "T")
        time.sleep(1.5)  # the time is over
        (self.folder / "go").touch()
        job.process.send_signal(signal.SIGCONT)
        self.assertEqual(job.wait().returncode, 3)
        self.assertEqual(job.log("worker.0"), b"server 0 is lost\n")

    def read_until(self, job, text):
        """What the launcher has said when it has said this; it is taken away."""
        said = b""
        while text not in said:
            piece = os.read(job.process.stderr.fileno(), 4096)
            self.assertTrue(piece, said)
            said += piece
        return said

    def stopped_job(self, script, *arguments, stop, ready, grace=0.3, timeout=2, apart=0):
        """A job of which the ranks `stop` are stopped as soon as there are files ready.N of `ready`,
        with what ranks wait for."""
        job = self.start("--keep-going", "--grace", grace, *arguments, self.script(script),
                         env={"TUTTI_TIMEOUT": str(timeout)}, limit=os.setpgrp)
        wait_until(lambda: all((self.folder / f"ready.{rank}").exists() for rank in ready))
        ranks = job.ranks()
        self.stopped_at = {}  # at the earliest
        for rank in stop:
            self.stopped_at[rank] = time.monotonic()
            os.kill(ranks[rank], signal.SIGSTOP)
            wait_until(lambda pid=ranks[rank]: state_of(pid) == "T")
            # First its wrapper, then the launcher, which that tells.
            for process in (parent_of(ranks[rank]), job.process.pid):
                wait_until(lambda pid=process: has_nothing_to_do(pid))
            if rank != stop[-1]:
                time.sleep(apart)
        (self.folder / "go").touch()
        return job, ranks

    def test_with_keep_going_a_stopped_worker_is_given_up_when_all_others_have_ended(self):
        job, _ = self.stopped_job("""
case $TUTTI_ROLE in
  server) echo 'ends by itself' >&$TUTTI_PROGRESS_FD
          while [ ! -e asked ]; do sleep 0.01; done; echo saved; exit 0;;
esac
[ $TUTTI_RANK = 1 ] && trap 'touch asked; exit 0' TERM
touch ready.$TUTTI_RANK
while [ ! -e go ]; do sleep 0.01; done
[ $TUTTI_RANK = 0 ] && exit 0
while :; do sleep 0.01; done""", "--server_num", 1, "--worker_num", 2, stop=[1], ready=[0, 1])
        result = job.wait()
        self.assertGreaterEqual(time.monotonic() - self.stopped_at[1], 2)  # one timeout
        self.assertEqual(result.returncode, 128 + signal.SIGSTOP, result.stderr)
        self.assertRegex(result.stderr, "tutti run: worker 1 is stopped by SIGSTOP, and nobody else is "
                                        r"left to go on; unless it does, it is ended in (2\.0|[01]\.\d) s\n")
        self.assertRegex(result.stderr, r"worker 1 \(rank 1 of 3\) on \S+ failed: it was stopped by "
                                        "SIGSTOP, and ended when nobody else was left to go on\n")
        self.assertEqual(job.log("server.0"), b"saved\n")

    def test_a_stopped_worker_is_the_first_failure_also_if_sigterm_is_not_enough(self):
        job, _ = self.stopped_job("""
[ $TUTTI_RANK = 1 ] && trap 'touch asked' TERM
touch ready.$TUTTI_RANK
while [ ! -e go ]; do sleep 0.01; done
[ $TUTTI_RANK = 0 ] && exit 5
while :; do sleep 0.01; done""", "-n", 2, stop=[1], ready=[0, 1])
        wait_until((self.folder / "asked").exists)
        job.process.send_signal(signal.SIGCONT)  # which changes nothing of when it was stopped
        result = job.wait()
        self.assertEqual(result.returncode, 128 + signal.SIGSTOP, result.stderr)
        self.assertRegex(result.stderr, r"failed as well: worker 0 [0-9.]+ s later \(exit code 5\)")
        self.assertNotIn("had been stopped", result.stderr)

    def test_a_stopped_worker_that_goes_on_in_time_has_not_failed(self):
        job, ranks = self.stopped_job("""
touch ready.$TUTTI_RANK
while [ ! -e go ]; do sleep 0.01; done
[ $TUTTI_RANK = 0 ] && exit 0
sleep 2.5
exit 0""", "-n", 2, stop=[1], ready=[0, 1])
        time.sleep(0.5)
        os.kill(ranks[1], signal.SIGCONT)
        result = job.wait()
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_a_worker_that_is_stopped_again_is_named_again(self):
        job, ranks = self.stopped_job("""
touch ready.$TUTTI_RANK
while [ ! -e go ]; do sleep 0.01; done
[ $TUTTI_RANK = 0 ] && exit 0
while [ ! -e enough ]; do sleep 0.01; done""", "-n", 2, stop=[1], ready=[0, 1], timeout=60)
        for _ in range(3):
            self.read_until(job, b"tutti run: worker 1 is stopped by SIGSTOP, and nobody else is left")
            os.kill(ranks[1], signal.SIGCONT)
            wait_until(lambda: state_of(ranks[1]) != "T")
            os.kill(ranks[1], signal.SIGSTOP)
        (self.folder / "enough").touch()
        os.kill(ranks[1], signal.SIGCONT)
        self.assertEqual(job.wait().returncode, 0)

    def test_a_job_that_is_stopped_and_goes_on_names_nobody(self):
        job, ranks = self.stopped_job("""
touch ready.$TUTTI_RANK
while [ ! -e go ]; do sleep 0.01; done
[ $TUTTI_RANK = 0 ] && exit 5
while [ ! -e enough ]; do sleep 0.01; done""", "-n", 2, stop=[], ready=[0, 1])
        self.read_until(job, b"worker 0 failed: exit code 5; the others go on\n")
        for _ in range(5):
            job.process.send_signal(signal.SIGTSTP)
            # (D: the shell waits for a child that is stopped before it has become sleep.)
            wait_until(lambda: state_of(job.process.pid) == "T" and state_of(ranks[1]) in "TD")
            job.process.send_signal(signal.SIGCONT)
            wait_until(lambda: state_of(ranks[1]) in "RS")
        (self.folder / "enough").touch()
        result = job.wait()
        self.assertEqual(result.returncode, 5, result.stderr)
        self.assertNotIn("is stopped", result.stderr)

    def test_each_of_two_stopped_workers_is_killed_after_its_own_grace(self):
        job, ranks = self.stopped_job("""
trap '' TERM
touch ready.$TUTTI_RANK
while [ ! -e go ]; do sleep 0.01; done
[ $TUTTI_RANK = 0 ] && exit 0
while :; do sleep 0.01; done""", "-n", 3, stop=[1, 2], ready=[0, 1, 2], grace=1.2, timeout=2.2, apart=1)
        for rank in (1, 2):  # neither along with the other, nor sooner
            wait_until(lambda rank=rank: rank not in job.ranks())
            self.assertGreaterEqual(time.monotonic() - self.stopped_at[rank], 2.2 + 1.2)
        result = job.wait()
        self.assertEqual(result.returncode, 128 + signal.SIGSTOP, result.stderr)

    def test_a_server_that_was_stopped_along_with_a_worker_is_named_and_has_a_grace(self):
        job, _ = self.stopped_job("""
[ $TUTTI_ROLE = server ] && echo 'ends by itself' >&$TUTTI_PROGRESS_FD
touch ready.$TUTTI_RANK
while [ ! -e go ]; do sleep 0.01; done
[ $TUTTI_RANK = 0 ] && exit 0
sleep 1000""", "--server_num", 1, "--worker_num", 2, stop=[2, 1], ready=[0, 1, 2])
        result = job.wait()
        self.assertEqual(result.returncode, 128 + signal.SIGSTOP, result.stderr)
        self.assertIn("tutti run: server 0 is stopped by SIGSTOP, and nobody else is left to go on; "
                      "unless it does, it is ended in 0.3 s\n", result.stderr)

    def test_a_stopped_server_is_given_up_when_all_workers_have_ended(self):
        job, _ = self.stopped_job("""
[ $TUTTI_ROLE = server ] && echo 'ends by itself' >&$TUTTI_PROGRESS_FD
touch ready.$TUTTI_RANK
[ $TUTTI_ROLE = server ] && sleep 1000
while [ ! -e go ]; do sleep 0.01; done
echo server 0 is lost
exit 1""", "--server_num", 1, "--worker_num", 1, stop=[1], ready=[0, 1])
        result = job.wait()
        self.assertEqual(result.returncode, 128 + signal.SIGSTOP, result.stderr)
        self.assertRegex(result.stderr, r"server 0 \(rank 1 of 2\) on \S+ failed: it was stopped")


if __name__ == "__main__":
    main()
