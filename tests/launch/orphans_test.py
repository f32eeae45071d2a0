#!/usr/bin/env python3
"""No process of a job outlives its launcher or wrapper, whoever of them is killed or stopped."""

import os
import pty
import signal
import subprocess

from job import TUTTI, JobTest, main, parent_of, state_of, wait_until

# A rank with children: one in its process group, one in a session of its own, one whose parent has
# ended. Its name is an argument of each.
FAMILY = """
sleep 1000 &
setsid sleep 1000 &
(setsid sleep 1000 &)
echo family $TUTTI_RANK
"""


class Orphans(JobTest):
    def family(self, ending="wait", ranks=2):
        job = self.start("-n", ranks, "--grace", 1, self.script(FAMILY + ending, "family.sh"))
        wait_until(lambda: sum("sleep 1000" in line for line in job.processes().values())
                   == 3 * ranks)
        wait_until(lambda: all(job.log(f"worker.{rank}") == b"family %d\n" % rank for rank in range(ranks)))
        return job

    def test_a_killed_launcher_leaves_nothing(self):
        job = self.family()
        job.process.kill()
        self.assert_gone(job)

    def test_a_killed_launcher_leaves_nothing_that_ignores_sigterm(self):
        job = self.family("trap '' TERM; while :; do sleep 0.1; done")
        job.process.kill()
        self.assert_gone(job)

    def test_a_killed_wrapper_leaves_nothing_and_is_a_failure_of_its_rank(self):
        job = self.family()
        os.kill(parent_of(job.ranks()[1]), signal.SIGKILL)
        result = job.wait()
        self.assertEqual(result.returncode, 137)
        self.assertIn("worker 1 (rank 1 of 2)", result.stderr)
        self.assertIn("family 1", result.stderr)  # its last words, from the log
        self.assert_gone(job)

    def test_children_that_a_shell_had_before_it_became_the_launcher_are_left(self):
        script = self.script("kill -9 $PPID; sleep 1000")
        command = (f'sleep 1000 >/dev/null 2>&1 & echo $! > other; exec "{TUTTI}" run -n 1 "{script}"')
        self.assertEqual(subprocess.run(["sh", "-c", command], cwd=self.folder,
                                        capture_output=True).returncode, 137)
        other = int((self.folder / "other").read_text())
        self.assertIn(state_of(other), "RS")
        os.kill(other, signal.SIGKILL)

    def test_a_killed_rank_leaves_nothing(self):
        job = self.family()
        os.kill(job.ranks()[1], signal.SIGKILL)
        self.assertEqual(job.wait().returncode, 137)
        self.assert_gone(job)

    def test_a_rank_that_ends_leaves_nothing(self):
        job = self.family("while [ ! -e go ]; do sleep 0.01; done")
        (self.folder / "go").touch()
        self.assertEqual(job.wait().returncode, 0)
        self.assert_gone(job)

    def test_a_stopped_rank_is_named_when_another_fails(self):
        script = self.script("""
touch ready.$TUTTI_RANK
while [ ! -e go ]; do sleep 0.01; done
[ $TUTTI_RANK = 0 ] && exit 6
exec sleep 1000""")
        screen, terminal = pty.openpty()
        self.addCleanup(os.close, screen)
        job = self.start("-n", 3, script, stderr=terminal)
        os.close(terminal)
        wait_until(lambda: len(list(self.folder.glob("ready.*"))) == 3)
        os.kill(job.ranks()[2], signal.SIGSTOP)
        shown = b""
        while b"; worker 2 is stopped; " not in shown:  # the launcher knows
            shown += os.read(screen, 4096)
        (self.folder / "go").touch()
        while b"  had been stopped: worker 2 by SIGSTOP\r\n" not in shown:
            shown += os.read(screen, 4096)
        self.assertEqual(job.wait().returncode, 6)
        self.assert_gone(job)

    def test_a_stopped_wrapper_and_a_stopped_rank_are_ended(self):
        job = self.family()
        ranks = job.ranks()
        os.kill(parent_of(ranks[0]), signal.SIGSTOP)
        os.kill(ranks[1], signal.SIGSTOP)
        job.process.terminate()
        self.assertEqual(job.wait().returncode, 143)
        self.assert_gone(job)


if __name__ == "__main__":
    main()
