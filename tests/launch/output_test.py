#!/usr/bin/env python3
"""What becomes of the ranks' output: shown, logged, cut, blocked, and with a disk that is full."""

import os
import pty
import re
import resource
import select
import signal
import subprocess
import time
import unittest

from job import LIMIT, JobTest, main, parent_of, state_of, wait_until


class Shown(JobTest):
    def lines(self, text):
        """What was shown, but for the launcher's own first line."""
        return [line for line in text.splitlines() if not line.startswith("tutti run: ")]

    def lines_at_once(self, ranks, *arguments):
        """What is shown of a job whose ranks make a file ready.N and wait for the file go: however late their lines
        come, the launcher sees them at once, since it is stopped meanwhile."""
        job = self.start(*arguments)
        wait_until(lambda: len(list(self.folder.glob("ready.*"))) == ranks)
        job.process.send_signal(signal.SIGSTOP)
        wait_until(lambda: state_of(job.process.pid) == "T")
        (self.folder / "go").touch()
        wait_until(lambda: set(job.processes()) == {job.process.pid})
        job.process.send_signal(signal.SIGCONT)
        return self.lines(job.wait().stderr)

    def test_rank_0_is_shown_as_it_is_and_the_others_stderr_with_their_rank(self):
        script = self.script('echo out $TUTTI_RANK; echo err $TUTTI_RANK >&2')
        result = self.run_job("-n", 3, script)
        self.assertEqual(result.stdout, "out 0\n")
        self.assertEqual(sorted(self.lines(result.stderr)), ["[1] err 1", "[2] err 2", "err 0"])
        for rank in range(3):
            log = result.job.log(f"worker.{rank}").splitlines()
            self.assertEqual(sorted(log), [b"err %d" % rank, b"out %d" % rank])

    def test_equal_lines_of_several_ranks_are_shown_once(self):
        script = self.script("""
touch ready.$TUTTI_RANK
while [ ! -e go ]; do sleep 0.01; done
[ $TUTTI_RANK = 0 ] && exit 0
[ $TUTTI_RANK = 4 ] || echo the same >&2
echo rank $TUTTI_RANK >&2
echo the end >&2""")
        lines = self.lines_at_once(7, "-n", 7, script)
        self.assertEqual([line for line in lines if "same" in line], ["[1-3,5-6] the same"])
        # The lines of a rank stay in their order.
        for rank in range(1, 7):
            own = lines.index(f"[{rank}] rank {rank}")
            self.assertTrue(any("the end" in line for line in lines[own + 1 :]), lines)

    def test_tee_chooses_whose_output_is_shown(self):
        script = self.script('echo out $TUTTI_RANK; echo err $TUTTI_RANK >&2')
        for tee, out, err in (("all", ["[0] out 0", "[1] out 1", "[2] out 2"], 3),
                              ("0,2", ["[0] out 0", "[2] out 2"], 3),
                              ("1", ["out 1"], 3), ("none", [], 0)):
            with self.subTest(tee=tee):
                result = self.run_job("-n", 3, "--tee", tee, script)
                self.assertEqual(sorted(result.stdout.splitlines()), out)
                self.assertEqual(len(self.lines(result.stderr)), err)

    def test_a_prefix_of_the_user_s(self):
        script = self.script("""
echo hi
touch $TUTTI_ROLE
while [ ! -e server ]; do sleep 0.01; done""")
        result = self.run_job("--server_num", 1, "--worker_num", 1, "--tee", "all", "--prefix",
                              "<{role}{index}@{host} {{rank}/{local_rank}> ", script)
        name = os.uname().nodename
        self.assertEqual(sorted(result.stdout.splitlines()),
                         [f"<server0@{name} {{1/1> hi", f"<worker0@{name} {{0/0> hi"])

    def test_roles_are_named(self):
        script = self.script("""
touch ready.$TUTTI_RANK
while [ ! -e go ]; do sleep 0.01; done
[ $TUTTI_ROLE = worker ] || echo serving >&2""")
        self.assertEqual(self.lines_at_once(3, "--server_num", 2, "--worker_num", 1, script),
                         ["[server 0-1] serving"])

    def test_the_report_begins_a_line_where_both_streams_are_one(self):
        result = self.run_job("-n", 1, self.script("printf unfinished; exit 3"),
                              stderr=subprocess.STDOUT)
        self.assertIn("\nunfinished\ntutti run: worker 0 (rank 0 of 1)", result.stdout)

    def test_bytes_pass_unchanged(self):
        data = bytes(range(256)) * 300 + "\r50%\r100%\n\nä€😀".encode() + b"\xff no end"
        (self.folder / "data").write_bytes(data)
        job = self.start("-n", 2, "cat", "data")
        out, _ = job.process.communicate(timeout=60)
        self.assertEqual(out, data)
        self.assertEqual(job.log("worker.0"), data)
        self.assertEqual(job.log("worker.1"), data)

    def test_lines_end_where_characters_do(self):
        long = "€" * 40000
        (self.folder / "data").write_text(long + "\n 1%\r50%\rdone\r\nno end", encoding="utf-8",
                                          newline="")
        result = self.run_job("-n", 2, self.script("[ $TUTTI_RANK = 0 ] || cat data >&2"))
        lines = self.lines(result.stderr)  # decoded: no character is cut
        self.assertEqual(lines[-2:], ["[1] done", "[1] no end"])
        self.assertGreater(len(lines), 3)
        for line in lines[:-2]:
            self.assertRegex(line, r"^\[1\] €+$")
        self.assertEqual("".join(line[4:] for line in lines[:-2]), long)

    def test_stdin_is_the_first_rank_s(self):
        with open(self.folder / "input", "w+", encoding="utf-8") as file:
            file.write("text\n")
            file.seek(0)
            result = self.run_job("-n", 2, "cat", stdin=file)
        self.assertEqual((result.returncode, result.stdout), (0, "text\n"))

    def test_the_last_lines_of_the_failed_rank_are_its_stderr_s(self):
        script = self.script("""
[ $TUTTI_RANK = 0 ] && sleep 1000
for i in $(seq 100); do echo out $i; done
for i in $(seq 100); do echo trace $i >&2; done
exit 1""")
        result = self.run_job("-n", 2, "--tee", "none", script)
        block = [line for line in result.stderr.splitlines() if line.startswith("  | ")]
        self.assertEqual(block, [f"  | trace {i}" for i in range(81, 101)])


class Blocked(JobTest):
    WRITER = "import os\nfor i in range(400): os.write(1, b'%099d\\n' % i * 1000)\n"

    def setUp(self):
        super().setUp()
        self.writer = self.folder / "writer.py"
        self.writer.write_text(self.WRITER, encoding="utf-8")

    def test_who_reads_late_gets_everything(self):
        job = self.start("-n", 1, self.writer)
        wait_until(lambda: (self.folder / "log/last/worker.0.log").exists())
        time.sleep(0.3)  # everything on the way fills up
        out, _ = job.process.communicate(timeout=60)
        self.assertEqual(out, b"".join(b"%099d\n" % i * 1000 for i in range(400)))
        self.assertEqual(job.log("worker.0"), out)

    def test_a_job_whose_output_nobody_reads_can_be_ended(self):
        job = self.start("-n", 2, "--tee", "all", self.writer)
        wait_until(lambda: len(list(self.folder.glob("log/last/*.log"))) == 2)
        time.sleep(0.3)
        job.process.send_signal(signal.SIGTERM)
        self.assertEqual(job.process.wait(5), 143)
        self.assert_gone(job)

    def test_a_job_that_has_failed_need_not_wait_for_its_reader(self):
        self.script('while [ $(stat -c %s log/last/attempt.0/worker.0.log || echo 0) -lt 2000000 ]\n'
                    'do sleep 0.01; done; exit 3', "fail")
        job = self.start("-n", 2, "--restart", 5, self.script(
            '[ $TUTTI_RANK = 1 ] && exec ./fail\nexec python3 writer.py'))
        log = self.folder / "log/last/attempt.0/worker.0.log"
        wait_until(lambda: log.exists() and log.stat().st_size >= 2_000_000 and not job.ranks())
        job.process.send_signal(signal.SIGINT)
        self.assertEqual(job.process.wait(20), 3)
        self.assert_gone(job)

    def test_what_a_killed_wrapper_had_sent_is_shown(self):
        first = b"x" * 150_000  # more than the launcher reads at once
        (self.folder / "first").write_bytes(first)
        job = self.start("-n", 1, self.script("""
touch ready
while [ ! -e begin ]; do sleep 0.01; done; cat first
while [ ! -e go ]; do sleep 0.01; done; echo second
sleep 1000"""))
        wait_until((self.folder / "ready").exists)
        wrapper = parent_of(job.ranks()[0])
        os.kill(job.process.pid, signal.SIGSTOP)
        wait_until(lambda: state_of(job.process.pid) == "T")
        (self.folder / "begin").touch()
        wait_until(lambda: len(job.log("worker.0")) == len(first))
        (self.folder / "go").touch()
        wait_until(lambda: job.log("worker.0").endswith(b"second\n"))  # so the first was sent
        os.kill(wrapper, signal.SIGKILL)
        wait_until(lambda: state_of(wrapper) == "Z")
        os.kill(job.process.pid, signal.SIGCONT)
        result = job.wait()
        self.assertEqual(result.returncode, 137, result.stderr)
        self.assertEqual(result.stdout[:len(first)], first.decode())

    def test_a_job_goes_on_without_its_reader(self):
        job = self.start("-n", 1, self.writer)
        job.process.stdout.read(1000)
        job.process.stdout.close()
        job.process.stdout = None
        self.assertEqual(job.wait().returncode, 0)
        self.assertEqual(len(job.log("worker.0")), 400 * 100_000)


class FullDisk(JobTest):
    SCRIPT = """
head -c 300000 /dev/zero | tr '\\0' x
echo
while [ ! -e go ]; do sleep 0.01; done
echo the end"""

    def test_a_log_that_may_not_grow_ends_nothing(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))

        script = self.script("echo begin; head -c 300000 /dev/zero; echo; echo the end")
        command = [os.environ["TUTTI_LAUNCHER"], "run", "-n", "3", str(script)]
        result = subprocess.run(command, cwd=self.folder, preexec_fn=limit, capture_output=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout, b"begin\n" + bytes(300000) + b"\nthe end\n")
        self.assertEqual(result.stderr.count(b"File too large"), 1, result.stderr)
        for rank in range(3):
            log = (self.folder / f"log/last/worker.{rank}.log").read_bytes()
            self.assertEqual(log, (b"begin\n" + bytes(100_000))[:100_000])

    @unittest.skipUnless(os.getuid() == 0, "mounting a small disk needs root")
    def test_a_full_disk_ends_nothing_and_what_is_missing_is_counted(self):
        disk = self.folder / "log"
        disk.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", disk]).returncode != 0:
            self.skipTest("this root may not mount")
        self.addCleanup(subprocess.run, ["umount", "-l", disk])
        (disk / "filler").write_bytes(bytes(60_000))
        job = self.start("-n", 1, self.script(self.SCRIPT))
        said = job.process.stderr.readline() + job.process.stderr.readline()
        self.assertEqual(said.count(b"No space left on device; the job goes on"), 1, said)
        shown = job.process.stdout.read(300_001)
        (disk / "filler").unlink()
        (self.folder / "go").touch()
        result = job.wait()
        self.assertEqual(result.returncode, 0)
        self.assertNotIn("No space", result.stderr)
        self.assertEqual(shown.decode() + result.stdout, "x" * 300_000 + "\nthe end\n")
        log = job.log("worker.0").decode()
        kept, _, rest = log.partition("\n[tutti: ")
        missing, _, rest = rest.partition(" bytes are missing here: No space left on device]\n")
        self.assertEqual(len(kept) + int(missing), 300_001, log[-200:])
        self.assertEqual(rest, "the end\n")

    def test_a_folder_that_is_called_last_is_left_alone(self):
        (self.folder / "log" / "last").mkdir(parents=True)
        self.assertEqual(self.run_job("true").returncode, 0)
        self.assertEqual([path.name for path in self.folder.glob("log/last-*")], [])

    def test_without_a_folder_for_logs_the_job_runs(self):
        (self.folder / "log").write_text("in the way", encoding="utf-8")
        result = self.run_job("-n", 2, "echo", "hi")
        self.assertEqual((result.returncode, result.stdout), (0, "hi\n"))
        self.assertIn("no logs: log/", result.stderr)
        asked = self.run_job("-n", 2, "--log_dir", "log", "echo", "hi")
        self.assertEqual((asked.returncode, asked.stdout), (2, ""))
        self.assertIn("--log_dir log: ", asked.stderr)


class Terminal(JobTest):
    def shown(self, *arguments, until=None):
        """What a job has written on a terminal; it makes the file `enough` once that matches `until`."""
        ours, theirs = pty.openpty()
        job = self.start(*arguments, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        text = b""
        try:
            while select.select([ours], [], [], LIMIT)[0] and (piece := os.read(ours, 65536)):
                text += piece
                if until and re.search(until, text):
                    (self.folder / "enough").touch()
        except OSError:
            pass  # all other ends are closed
        os.close(ours)
        self.assertEqual(job.process.wait(10), 0)
        return text.decode().replace("\r\n", "\n")

    def test_a_line_of_the_state_with_what_the_ranks_report(self):
        script = self.script("""
echo first
[ $TUTTI_RANK = 1 ] && exit 0
while [ ! -e enough ]; do echo "3/4, 100 images/s" >&$TUTTI_PROGRESS_FD; sleep 0.05; done
echo last""")
        text = self.shown("-n", 2, script, until=rb"\r\033\[Ktutti run: 1 of 2 workers running; worker 0: 3/4, "
                                                rb"100 images/s; 0:\d\d\r\033\[K")
        self.assertIn("first\n", text)
        # Nothing of it is left at the end.
        self.assertTrue(text.endswith("\r\033[Klast\n") or text.endswith("\r\033[K"), text[-80:])

    def test_progress_that_nobody_reads_holds_nobody_up(self):
        script = self.script("yes | head -n 200000 >&$TUTTI_PROGRESS_FD 2>/dev/null; echo done")
        self.assertEqual(self.run_job("-n", 1, script).stdout, "done\n")


if __name__ == "__main__":
    main()
