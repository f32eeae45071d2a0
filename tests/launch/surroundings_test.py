#!/usr/bin/env python3
"""Jobs where less is allowed than usual: few descriptors, ignored signals, nobody who would let them go on."""

import os
import resource
import signal

from job import JobTest, main, wait_until


def descriptors(soft, hard=None):
    """Lets a process have so many."""
    own = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, own if hard is None else hard))


class Descriptors(JobTest):
    def test_the_launcher_takes_as_many_as_it_may_and_ranks_get_what_it_was_given(self):
        script = self.script("[ $TUTTI_RANK = 29 ] || exit 0; ulimit -S -n; ulimit -H -n")
        result = self.run_job("-n", 30, "--tee", 29, script, limit=descriptors(40))
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        self.assertEqual((result.returncode, result.stdout), (0, f"40\n{hard}\n"), result.stderr)

    def test_what_was_started_ends_when_a_rank_cannot_be(self):
        script = self.script("trap '' TERM; while :; do sleep 0.01; done")
        job = self.start("-n", 30, "--grace", 0.5, script, limit=descriptors(40, 40))
        job.process.wait()
        self.assertEqual(job.processes(), {}, "left behind")
        result = job.wait()
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn("\ntutti run: cannot make a socket for a rank: Too many open files\n", result.stderr)

    def test_and_if_that_was_a_restart_the_code_is_that_of_the_failure(self):
        job = self.start("-n", 4, "--restart", 3, self.script("""
touch ready.$TUTTI_RANK
while [ ! -e go ]; do sleep 0.01; done; exit 7"""))
        wait_until(lambda: len(list(self.folder.glob("ready.*"))) == 4)
        resource.prlimit(job.process.pid, resource.RLIMIT_NOFILE, (16, 16))
        (self.folder / "go").touch()
        result = job.wait()
        self.assertEqual(job.processes(), {}, "left behind")
        self.assertEqual(result.returncode, 7, result.stderr)
        self.assertRegex(result.stderr, "tutti run: they cannot be started again: .*: Too many open files\n")


class IgnoredSignals(JobTest):
    def ready(self, limit):
        """A job of two ranks that end, and say so, when they get SIGUSR1."""
        job = self.start("-n", 2, self.script("""
trap 'echo one; exit 0' USR1
touch ready.$TUTTI_RANK
while :; do sleep 0.01; done"""), limit=limit)
        wait_until(lambda: len(list(self.folder.glob("ready.*"))) == 2)
        return job

    def check(self, job):
        job.process.send_signal(signal.SIGUSR1)
        self.assertEqual(job.wait().returncode, 0)
        self.assertEqual(job.log("worker.1"), b"one\n")

    def test_what_nohup_and_a_shell_have_a_command_ignore_does_not_end_it(self):
        ignored = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
        job = self.ready(lambda: [signal.signal(number, signal.SIG_IGN) for number in ignored])
        for number in ignored:
            job.process.send_signal(number)
        self.check(job)

    def test_a_ctrl_z_after_which_nobody_would_let_it_go_on_stops_nothing(self):
        job = self.ready(os.setsid)  # without a shell, as in a container
        job.process.send_signal(signal.SIGTSTP)
        self.check(job)


if __name__ == "__main__":
    main()
