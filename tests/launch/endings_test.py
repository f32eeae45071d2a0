#!/usr/bin/env python3
"""How jobs end: exit codes, signals, time limits, restarts."""

import os
import signal
import socket
import sys
import time
from pathlib import Path

from job import JobTest, free_port, main, parent_of, state_of, wait_until

# Ends when the wrapper has read what the rank has written to it.
PIPE_IS_READ = f"""{sys.executable} -c '
import array, fcntl, os, termios, time
unread = array.array("i", [1])
while unread[0]:
    fcntl.ioctl(int(os.environ["TUTTI_PROGRESS_FD"]), termios.FIONREAD, unread)
    time.sleep(0.001)'"""


class ExitCodes(JobTest):
    def test_the_code_of_the_first_failure_is_the_command_s(self):
        script = self.script('[ "$TUTTI_RANK" = 1 ] && exit "$1"; sleep 1000')
        for code in (1, 2, 7, 42, 124, 126, 130, 137, 255):
            with self.subTest(code=code):
                result = self.run_job("-n", 2, script, code)
                self.assertEqual(result.returncode, code)
                self.assertIn(f"worker 1 (rank 1 of 2) on {os.uname().nodename} failed: "
                              f"exit code {code}\n", result.stderr)
                self.assertIn("told to end: worker 0", result.stderr)

    def test_a_signal_gives_128_and_its_number(self):
        script = self.script('[ "$TUTTI_RANK" = 2 ] && kill -"$1" $$; sleep 1000')
        for number in (signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM, signal.SIGABRT):
            with self.subTest(signal=number.name):
                result = self.run_job("-n", 3, script, int(number))
                self.assertEqual(result.returncode, 128 + number)
                self.assertIn(f"worker 2 (rank 2 of 3) on {os.uname().nodename} failed: "
                              f"signal {int(number)} ({number.name})", result.stderr)

    def test_all_well_is_0_and_says_nothing_more(self):
        result = self.run_job("-n", 3, "true")
        self.assertEqual((result.returncode, result.stdout), (0, ""))
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)

    def test_the_first_failure_by_time_is_named_not_the_one_that_follows_from_it(self):
        # Rank 0 fails as soon as it sees that rank 3 has: its wrapper has taken its end then.
        script = self.script("""
case $TUTTI_RANK in
  3) echo the cause >&2; echo $$ > process; mv process failing; exit 9;;
  0) while [ ! -e failing ]; do sleep 0.01; done
     while kill -0 $(cat failing) 2> /dev/null; do sleep 0.01; done; exit 1;;
  *) sleep 1000;;
esac""")
        result = self.run_job("-n", 4, script)
        self.assertEqual(result.returncode, 9)
        self.assertIn("worker 3 (rank 3 of 4)", result.stderr)
        self.assertIn("\n  | the cause\n", result.stderr)

    def test_who_fails_is_waited_for_and_named_before_those_who_end_for_that(self):
        # Rank 0 hears that rank 1 fails once its wrapper has read that, and ends first.
        script = self.script(f"""
case $TUTTI_RANK in
  1) echo is failing >&$TUTTI_PROGRESS_FD; {PIPE_IS_READ}; touch failing
     while [ ! -e process ] || kill -0 $(cat process) 2> /dev/null; do sleep 0.01; done
     echo the cause >&2; exit 9;;
  0) while [ ! -e failing ]; do sleep 0.01; done; echo $$ > own; mv own process; exit 1;;
  *) sleep 1000;;
esac""")
        result = self.run_job("-n", 3, script)
        self.assertEqual(result.returncode, 9, result.stderr)
        self.assertIn("worker 1 (rank 1 of 3)", result.stderr)
        self.assertIn("\n  | the cause\n", result.stderr)
        self.assertRegex(result.stderr, r"failed as well: worker 0 \d\.\d s earlier \(exit code 1\)\n"
                                        r"  told to end: worker 2\n")

    def test_who_fails_is_not_waited_for_without_end(self):
        script = self.script(f"""
if [ $TUTTI_RANK = 1 ]; then
  echo is failing >&$TUTTI_PROGRESS_FD; {PIPE_IS_READ}; touch failing; exec sleep 1000
fi
while [ ! -e failing ]; do sleep 0.01; done; exit 7""")
        result = self.run_job("-n", 2, script)
        self.assertEqual(result.returncode, 7, result.stderr)
        self.assertIn("told to end: worker 1", result.stderr)

    def test_who_ends_for_another_is_not_named_where_that_one_fails(self):
        script = self.script("""
if [ $TUTTI_RANK = 0 ]; then
  echo ends for another >&$TUTTI_PROGRESS_FD; echo $$ > own; mv own process; exit 1
fi
while [ ! -e process ] || kill -0 $(cat process) 2> /dev/null; do sleep 0.01; done
echo the cause >&2; exit 9""")
        result = self.run_job("-n", 2, script)
        self.assertEqual(result.returncode, 9, result.stderr)
        self.assertIn("worker 1 (rank 1 of 2)", result.stderr)
        self.assertIn("\n  | the cause\n", result.stderr)

    def test_for_whom_one_has_ended_is_not_waited_for_without_end(self):
        result = self.run_job("-n", 2, self.script("""
[ $TUTTI_RANK = 1 ] && exec sleep 1000
echo ends for another >&$TUTTI_PROGRESS_FD; exit 7"""))
        self.assertEqual(result.returncode, 7, result.stderr)
        self.assertIn("told to end: worker 1", result.stderr)

    def test_the_order_in_which_ranks_end_counts_not_that_in_which_it_is_told(self):
        script = self.script("""
trap 'touch told; exit 0' TERM
echo ready $TUTTI_RANK
[ $TUTTI_RANK = 1 ] && exec sleep 1000
if [ $TUTTI_RANK = 0 ]; then while [ ! -e go ]; do sleep 0.01; done; exit 1; fi
while [ ! -e heard ]; do sleep 0.01; done""")
        for keep_going in ([], ["--keep-going"]):
            for all_late in (False, True):
                with self.subTest(keep_going=keep_going, all_late=all_late):
                    self.first_of_two(keep_going, script, all_late)

    def first_of_two(self, keep_going, script, all_late):
        """Rank 1 is killed, then rank 0 ends; the wrapper of rank 1 is late, and, if all are, the launcher."""
        for name in ("go", "heard", "told"):
            (self.folder / name).unlink(missing_ok=True)
        shown = self.folder / "shown"
        said = self.folder / "said"
        with shown.open("wb") as out, said.open("wb") as err:
            job = self.start("-n", 3, "--tee", "all", *keep_going, script, stdout=out, stderr=err)
        # By then the launcher knows the ranks' processes.
        wait_until(lambda: shown.read_bytes().count(b"ready ") == 3)
        ranks = job.ranks()
        wrapper = parent_of(ranks[1])
        late = [wrapper, job.process.pid] if all_late else [wrapper]
        for pid in late:
            os.kill(pid, signal.SIGSTOP)
            wait_until(lambda pid=pid: state_of(pid) == "T")
        os.kill(ranks[1], signal.SIGKILL)
        wait_until(lambda: state_of(ranks[1]) == "Z")
        (self.folder / "go").touch()
        wait_until(lambda: not Path(f"/proc/{ranks[0]}").exists())  # its wrapper has seen it
        for pid in late[1:]:
            os.kill(pid, signal.SIGCONT)
        if keep_going:
            wait_until(lambda: b"worker 0 failed: exit code 1; the others go on\n" in said.read_bytes())
        else:
            wait_until((self.folder / "told").exists)
        os.kill(wrapper, signal.SIGCONT)
        (self.folder / "heard").touch()
        self.assertEqual(job.wait().returncode, 128 + signal.SIGKILL, said.read_text())
        self.assertIn(f"worker 1 (rank 1 of 3) on {os.uname().nodename} failed: signal 9 (SIGKILL)\n",
                      said.read_text())
        self.assertRegex(said.read_text(), r"failed as well: worker 0 [0-9.]+ m?s later \(exit code 1\)")
        self.assertEqual(job.processes(), {}, "left behind")

    def test_a_program_that_cannot_be_run_is_127_or_126(self):
        (self.folder / "odd").write_bytes(b"\x7fELFnot")
        (self.folder / "odd").chmod(0o755)
        result = self.run_job("-n", 2, "./odd")
        self.assertEqual(result.returncode, 126)
        self.assertIn("cannot run ./odd", result.stderr)

    def test_after_the_timeout_it_is_124(self):
        result = self.run_job("-n", 2, "--timeout", 0.3, "sleep", 1000)
        self.assertEqual(result.returncode, 124)
        self.assertIn("--timeout has passed", result.stderr)

    def test_the_timeout_is_of_all_restarts_together(self):
        result = self.run_job("--timeout", 0.4, "--restart", 1000, self.script("sleep 0.05; exit 1"))
        self.assertEqual(result.returncode, 124)

    def test_a_failed_job_starts_again_as_often_as_was_said(self):
        script = self.script("""
echo attempt $TUTTI_ATTEMPT
touch seen.$TUTTI_ATTEMPT.$TUTTI_RANK
while [ ! -e seen.$TUTTI_ATTEMPT.0 ]; do sleep 0.01; done
[ $TUTTI_ATTEMPT = 2 ] && exit 0
[ $TUTTI_RANK = 1 ] && exit 5
sleep 1000""")
        result = self.run_job("--restart", 2, "-n", 2, script)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout, "attempt 0\nattempt 1\nattempt 2\n")
        for attempt in range(3):
            self.assertEqual(result.job.log(f"attempt.{attempt}/worker.1"), b"attempt %d\n" % attempt)
        self.assertEqual(self.run_job("--restart", 1, "-n", 2, script).returncode, 5)

    def test_a_restart_that_cannot_be_ends_with_the_code_of_the_failure(self):
        port = free_port()
        script = self.script("""
[ $TUTTI_ROLE = server ] && exec sleep 1000
touch ready
while [ ! -e go ]; do sleep 0.01; done; exit 7""")
        job = self.start("--restart", 3, f"--servers=127.0.0.1:{port}", "--worker_num", 1, script)
        wait_until((self.folder / "ready").exists)
        with socket.socket() as used:
            used.bind(("127.0.0.1", port))
            used.listen()
            (self.folder / "go").touch()
            result = job.wait()
        self.assertEqual(result.returncode, 7)
        self.assertRegex(result.stderr, f"cannot be started again: server 0 .*port {port} of ")

    def test_servers_end_with_the_workers(self):
        script = self.script("""
trap 'echo asked; exit 0' TERM
touch ready.$TUTTI_RANK
while [ ! -e ready.2 ] || [ ! -e ready.3 ]; do sleep 0.01; done
[ $TUTTI_ROLE = worker ] && exit 0
while :; do sleep 0.01; done""")
        result = self.run_job("--server_num", 2, "--worker_num", 2, script)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.job.log("server.1"), b"asked\n")

    def test_servers_that_end_by_themselves_are_left_alone(self):
        # Also one whose wrapper is late, and has much to read: the launcher does not know that yet when the worker
        # has ended.
        script = self.script("""
trap 'touch asked.$TUTTI_ROLE_INDEX; exit 0' TERM
touch ready.$TUTTI_RANK
while [ ! -e go ]; do sleep 0.01; done
case $TUTTI_ROLE.$TUTTI_ROLE_INDEX in
  worker.0) while [ ! -e told.0 ] || [ ! -e told.2 ]; do sleep 0.01; done; exit 0;;
  server.1) while :; do sleep 0.01; done;;
esac
{ seq -f %g/2000 2000; echo ends by itself; echo 2/4; } >&$TUTTI_PROGRESS_FD
touch told.$TUTTI_ROLE_INDEX
while [ ! -e goes_on ]; do sleep 0.01; done
sleep 3.1  # until a killer would have come
echo saved""")
        job = self.start("--server_num", 3, "--worker_num", 1, "--grace", 3, script)
        wait_until(lambda: len(list(self.folder.glob("ready.*"))) == 4)
        late = parent_of(job.ranks()[1])
        os.kill(late, signal.SIGSTOP)
        wait_until(lambda: state_of(late) == "T")
        (self.folder / "go").touch()
        wait_until((self.folder / "asked.1").exists)  # the launcher has told those that do not
        os.kill(late, signal.SIGCONT)
        (self.folder / "goes_on").touch()
        result = job.wait()
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual([path.name for path in self.folder.glob("asked.*")], ["asked.1"])
        self.assertEqual((job.log("server.0"), job.log("server.2")), (b"saved\n", b"saved\n"))

    def test_a_server_that_fails_ends_the_job(self):
        script = self.script('[ $TUTTI_ROLE = server ] && exit 3; sleep 1000')
        result = self.run_job("--server_num", 1, "--worker_num", 2, script)
        self.assertEqual(result.returncode, 3)
        self.assertIn("server 0 (rank 2 of 3)", result.stderr)


class Signals(JobTest):
    def ready(self, *arguments, ranks=2, **options):
        """A job whose ranks have all made a file ready.N."""
        job = self.start(*arguments, **options)
        wait_until(lambda: len(list(self.folder.glob("ready.*"))) == ranks)
        return job

    def test_ctrl_c_and_sigterm_reach_the_ranks(self):
        script = self.script("""
trap 'echo INT > got.$TUTTI_RANK; exit 0' INT
trap 'echo TERM > got.$TUTTI_RANK; exit 0' TERM
touch ready.$TUTTI_RANK
while :; do sleep 0.01; done""")
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            with self.subTest(signal=number.name):
                job = self.ready("-n", 2, script)
                job.process.send_signal(number)
                result = job.wait()
                self.assertEqual(result.returncode, code)
                self.assertIn(f"ended by {number.name}", result.stderr)
                for rank in range(2):
                    got = (self.folder / f"got.{rank}").read_text()
                    self.assertEqual(got, f"{number.name[3:]}\n")
                    (self.folder / f"ready.{rank}").unlink()
                self.assert_gone(job)

    def test_who_ignores_sigterm_is_killed_after_the_grace(self):
        script = self.script("""
trap '' TERM INT
touch ready.$TUTTI_RANK
[ $TUTTI_RANK = 0 ] || while :; do sleep 0.01; done
while [ ! -e ready.1 ]; do sleep 0.01; done; exit 4""")
        start = time.monotonic()
        result = self.run_job("-n", 2, "--grace", 0.4, script)
        self.assertEqual(result.returncode, 4)
        self.assertGreater(time.monotonic() - start, 0.4)
        self.assertIn("killed, since SIGTERM was not enough: worker 1", result.stderr)

    def test_who_ignores_what_ends_the_command_is_killed_after_the_grace(self):
        script = self.script("trap '' INT; touch ready.$TUTTI_RANK; while :; do sleep 0.01; done")
        job = self.ready("-n", 1, "--grace", 0.4, script, ranks=1)
        os.kill(job.process.pid, signal.SIGINT)
        result = job.wait()
        self.assertEqual(result.returncode, 130, result.stderr)
        self.assertIn("killed, since SIGINT was not enough: worker 0", result.stderr)

    def test_what_a_rank_has_started_has_its_grace_too(self):
        (self.folder / "trainer.sh").write_text("""
trap 'touch asked; while [ ! -e go ]; do sleep 0.01; done; echo saved > saved; exit 0' TERM
touch ready.0
while :; do sleep 0.01; done""")
        job = self.ready("-n", 1, "--grace", 30, self.script("sh trainer.sh; exit 0"), ranks=1)
        job.process.send_signal(signal.SIGTERM)
        wait_until((self.folder / "asked").exists)
        time.sleep(1.5)  # longer than those have that outlive a rank that nobody has told to end
        (self.folder / "go").touch()
        self.assertEqual(job.wait().returncode, 143)
        self.assertEqual((self.folder / "saved").read_text(), "saved\n")

    def test_a_second_ctrl_c_does_not_wait_for_the_grace(self):
        script = self.script("""
trap 'touch asked.$TUTTI_RANK' INT
touch ready.$TUTTI_RANK
while :; do sleep 0.01; done""")
        job = self.ready("-n", 2, "--grace", 1000, script)
        job.process.send_signal(signal.SIGINT)
        wait_until(lambda: len(list(self.folder.glob("asked.*"))) == 2)
        job.process.send_signal(signal.SIGINT)
        self.assertEqual(job.wait().returncode, 130)
        self.assert_gone(job)

    def test_other_signals_are_passed_on(self):
        script = self.script("""
trap 'echo one; exit 0' USR1
touch ready.$TUTTI_RANK
while :; do sleep 0.01; done""")
        job = self.ready("-n", 2, script)
        job.process.send_signal(signal.SIGUSR1)
        self.assertEqual(job.wait().returncode, 0)
        self.assertEqual(job.log("worker.1"), b"one\n")

    def test_stopping_the_job_stops_the_ranks(self):
        job = self.ready("-n", 2, self.script("touch ready.$TUTTI_RANK; sleep 1000"),
                         limit=os.setpgrp)  # as a job of a shell that may stop

        def states():
            pids = [pid for pid, line in job.processes().items() if "sleep 1000" in line]
            return [state_of(pid) for pid in pids]

        wait_until(lambda: states() == ["S", "S"])
        job.process.send_signal(signal.SIGTSTP)
        wait_until(lambda: states() == ["T", "T"])
        job.process.send_signal(signal.SIGCONT)
        wait_until(lambda: states() == ["S", "S"])
        job.process.send_signal(signal.SIGTERM)
        self.assertEqual(job.wait().returncode, 143)

    def test_stopping_the_job_stops_what_a_rank_is_starting(self):
        job = self.start("-n", 1, "--grace", 1, self.script(
            "for i in $(seq 2000); do [ ! -e enough ] || break; sleep 1000 & done; touch ready; wait"),
            limit=os.setpgrp)

        def sleeping():
            return [pid for pid, line in job.processes().items()
                    if "sleep 1000" in line and state_of(pid) == "S"]

        wait_until(sleeping)
        job.process.send_signal(signal.SIGTSTP)
        wait_until(lambda: state_of(job.ranks()[0]) in "TD" and not sleeping())
        (self.folder / "enough").touch()
        job.process.send_signal(signal.SIGCONT)
        wait_until((self.folder / "ready").exists)
        job.process.send_signal(signal.SIGTERM)
        self.assertEqual(job.wait().returncode, 143)


if __name__ == "__main__":
    main()
