#!/usr/bin/env python3
"""How wrappers on other machines and the launcher meet, and lose whoever has started them."""

import os
import resource
import signal
import subprocess
from pathlib import Path

import job
from clusters import ANSWER
from job import JobTest, main, parent_of, state_of, wait_until

# Between wrappers and the launcher: ADDRESS. Says its port. What callers send passes change(), of which each
# connection has one.
PROXY = """
import os, socket, sys, threading, time
host, port = sys.argv[1].split(",")[-1].split(":")
def pass_on(source, sink, change):
    try:
        while data := source.recv(65536):
            sink.sendall(change(data))
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        pass
with socket.create_server(("127.0.0.1", 0)) as server:
    server.settimeout(0.1)
    with open("port.new", "w") as file: print(server.getsockname()[1], file=file)
    os.rename("port.new", "port")
    pumps = []
    while not pumps or any(pump.is_alive() for pump in pumps):
        try:
            caller = server.accept()[0]
        except TimeoutError:
            continue
        caller.setblocking(True)
        launcher = socket.create_connection((host, int(port)))
        for ends in ((caller, launcher, connection()), (launcher, caller, lambda data: data)):
            pumps.append(threading.Thread(target=pass_on, args=ends))
            pumps[-1].start()
"""
# Another version of tutti.
OTHER_VERSION = """
def connection():
    return lambda data: data.replace(b" VERSION ", b" VERSION ".replace(b"0", b"9"))
"""
# All greetings of rank 1 come late.
LATE_GREETINGS = """
def connection():
    heard = []
    def change(data):
        if not heard and data[5:].split()[1] == b"1":
            time.sleep(1.5)
        heard.append(data)
        return data
    return change
"""
# The connection for output proves itself after that for control has.
LATE_OUTPUT = """
proved = threading.Event()
def connection():
    heard = []
    def change(data):
        heard.append(data)
        control = heard[0][5:].split()[2] == b"control"
        if len(heard) == 2 and control:
            proved.set()
        elif len(heard) == 2:
            proved.wait(20)
            time.sleep(0.3)
        return data
    return change
"""
# Of the output the beginning comes.
CUT_OUTPUT = """
def connection():
    heard = []
    def change(data):
        heard.append(data)
        output = heard[0][5:].split()[2] == b"output"
        return data[:7 if len(heard) == 3 else 0] if output and len(heard) > 2 else data
    return change
"""


# A process of several threads, as Open MPI's are: ADDRESSES. It is killed once two ranks have begun,
# and the thread that has started them is gone long before the others, which are held up.
THREADS = """
import os, subprocess, sys, threading, time
def wait():
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    time.sleep(1000)
for _ in range(200):
    threading.Thread(target=wait, daemon=True).start()
for rank in ("0", "1"):
    subprocess.Popen([os.environ["TUTTI_LAUNCHER"], "rank", "--connect", sys.argv[1]],
                     env={**os.environ, "OMPI_COMM_WORLD_RANK": rank})
while not (os.path.exists("begun.0") and os.path.exists("begun.1")):
    time.sleep(0.01)
for _ in os.sched_getaffinity(0):
    subprocess.Popen(["timeout", "0.5", "sh", "-c", "while :; do :; done"])
os.kill(os.getpid(), 9)
"""


# In place of mpiexec: ADDRESSES. What wrappers leave stays with it, as on another machine with that one's init.
INIT = """
import ctypes, os, signal, subprocess, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
wrappers = [subprocess.Popen([os.environ["TUTTI_LAUNCHER"], "rank", "--connect", sys.argv[1]],
                             env={**os.environ, "OMPI_COMM_WORLD_RANK": rank}) for rank in ("0", "1")]
for wrapper in wrappers:
    wrapper.wait()
"""


class Wrappers(JobTest):
    """What mpiexec has started, which is a script here: start RANK starts a wrapper."""

    def start_with(self, mpiexec, *program, hosts="198.51.100.1:1", agent=ANSWER, **options):
        agent = self.script(agent, "agent")
        self.script("""
[ "$1" = --version ] && { echo "mpiexec (OpenRTE) 4"; exit; }
for addresses; do :; done
start() { OMPI_COMM_WORLD_RANK=$1 "$TUTTI_LAUNCHER" rank --connect "$addresses" & }
start_by_proxy() { (addresses=127.0.0.1:$(cat port); start $1; wait) & }
""" + mpiexec, "mpiexec")
        return self.start("--hosts", f"{os.uname().nodename}:1,{hosts}", *program, env={
            "PATH": f"{self.folder}:{os.environ['PATH']}", "OMPI_MCA_plm_rsh_agent": str(agent)}, **options)

    def run_with(self, mpiexec, *program):
        job = self.start_with(mpiexec, *program)
        result = job.wait(30)
        self.assert_gone(job)
        return result

    def proxy(self, change):
        """Words for mpiexec's script that start one."""
        program = PROXY.replace("def pass_on", change + "\ndef pass_on")
        (self.folder / "proxy.py").write_text(program, encoding="utf-8")
        return 'python3 proxy.py "$addresses" &\nuntil [ -e port ]; do sleep 0.01; done\n'

    def test_all_start(self):
        script = self.script("echo here $TUTTI_RANK")
        result = self.run_with("start 0; start 1; wait", "--tee", "all", script)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(sorted(result.stdout.splitlines()), ["[0] here 0", "[1] here 1"])

    def test_who_cannot_call_is_not_waited_for(self):
        result = self.run_with('start 0; echo "tutti rank: b cannot reach a" >&2; exec sleep 1000',
                               "touch", "started")
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn("worker 1 (rank 1 of 2) on 198.51.100.1 failed: it did not start\n", result.stderr)
        self.assertIn("\n  | not all wrappers have called; missing are 1 of 198.51.100.1; mpiexec says:\n"
                      "  | tutti rank: b cannot reach a\n", result.stderr)
        self.assertIn("told to end: worker 0\n", result.stderr)
        self.assertFalse((self.folder / "started").exists())

    def test_either_connection_of_a_wrapper_may_come_first(self):
        result = self.run_with(f"{self.proxy(LATE_OUTPUT)}start_by_proxy 0; start 1; wait",
                               self.script("echo here $TUTTI_RANK"))
        self.assertEqual((result.returncode, result.stdout), (0, "here 0\n"), result.stderr)

    def test_output_that_was_lost_on_the_way_is_said(self):
        result = self.run_with(f"{self.proxy(CUT_OUTPUT)}start_by_proxy 0; start 1; wait",
                               self.script("echo here $TUTTI_RANK"))
        self.assertEqual((result.returncode, result.stdout), (0, ""), result.stderr)
        self.assertIn("\ntutti run: the connection that brings the output of worker 0 is lost: "
                      "the end of it may be in its log alone\n", result.stderr)

    def test_a_greeting_that_is_read_late_makes_no_failure_later(self):
        job = self.start_with(f"{self.proxy(LATE_GREETINGS)}start 0; start_by_proxy 1; wait", self.script("""
echo $$ > pid.$TUTTI_RANK; mv pid.$TUTTI_RANK process.$TUTTI_RANK
while [ ! -e go ]; do sleep 0.01; done
[ $TUTTI_RANK = 1 ] && exit 5
while kill -0 $(cat process.1) 2> /dev/null; do sleep 0.01; done; exit 6"""))
        processes = [self.folder / f"process.{rank}" for rank in range(2)]
        wait_until(lambda: all(process.exists() for process in processes))
        os.kill(job.process.pid, signal.SIGSTOP)  # it hears of both ends at once
        wait_until(lambda: state_of(job.process.pid) == "T")
        (self.folder / "go").touch()
        wait_until(lambda: not any(Path("/proc", process.read_text().strip()).exists()
                                   for process in processes))
        os.kill(job.process.pid, signal.SIGCONT)
        result = job.wait()
        self.assertEqual(result.returncode, 5, result.stderr)
        self.assertIn("worker 1 (rank 1 of 2) on 198.51.100.1 failed: exit code 5\n", result.stderr)

    def test_many_ranks_can_be_ended_whatever_the_limit_of_descriptors(self):
        own = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        job = self.start_with("touch asked; exec sleep 1000", "--grace", 0.1, "true", hosts="198.51.100.1:40",
                              agent="ulimit -S -n $(ulimit -H -n)" + ANSWER,
                              limit=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (40, own)))
        wait_until((self.folder / "asked").exists)
        job.process.send_signal(signal.SIGTERM)
        self.assertEqual(job.wait().returncode, 143)
        self.assert_gone(job)

    def test_why_a_wrapper_ended_is_shown(self):
        result = self.run_with("ulimit -n 9; start 0; start 1; wait", "sleep", 1000)
        self.assertNotEqual(result.returncode, 0)
        self.assertRegex(result.stderr, "mpiexec says:\n(  .*\n)*  . tutti rank: cannot make a ")

    def test_who_has_started_a_wrapper_may_end_before_the_ranks_begin(self):
        result = self.run_with("""
(start 0; until ls -l /proc/$(tr -d ' ' < /proc/$!/task/$!/children)/fd 2> /dev/null | grep -q socket
do sleep 0.01; done)
start 1; wait""", "sleep", 3)
        self.assertEqual(result.returncode, 143, result.stderr)
        self.assertIn("failed after the process of Open MPI that had started it", result.stderr)

    def test_another_version_is_refused_with_the_machine_s_name(self):
        version = subprocess.run([job.TUTTI, "--version"], capture_output=True, text=True, check=True)
        change = OTHER_VERSION.replace("VERSION", version.stdout.split()[1])
        result = self.run_with(f"{self.proxy(change)}start 0; start_by_proxy 1; wait", "touch", "started")
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn("worker 1 (rank 1 of 2) on 198.51.100.1 failed: it did not start\n", result.stderr)
        self.assertRegex(result.stderr, f"{os.uname().nodename}: its tutti is .*, but here it is ")
        self.assertFalse((self.folder / "started").exists())

    def test_who_has_started_wrappers_is_missed_however_many_threads_it_had(self):
        (self.folder / "threads.py").write_text(THREADS, encoding="utf-8")
        script = self.script("touch begun.$TUTTI_RANK; exec sleep 1000")
        result = self.run_with('python3 threads.py "$addresses"; sleep 5', script)
        self.assertEqual(result.returncode, 143, result.stderr)
        self.assertIn("failed after the process of Open MPI that had started it", result.stderr)

    def test_what_a_killed_wrapper_leaves_is_ended_on_its_machine(self):
        (self.folder / "init.py").write_text(INIT, encoding="utf-8")
        job = self.start_with('exec python3 init.py "$addresses"', self.script("""
setsid sleep 1000 &
echo $$ > pid.$TUTTI_RANK; mv pid.$TUTTI_RANK process.$TUTTI_RANK
wait"""))
        processes = [self.folder / f"process.{rank}" for rank in range(2)]
        wait_until(lambda: all(process.exists() for process in processes))
        os.kill(parent_of(int(processes[1].read_text())), signal.SIGKILL)
        result = job.wait()
        self.assertEqual(result.returncode, 137, result.stderr)
        self.assertIn("worker 1 (rank 1 of 2) on 198.51.100.1 failed with the process that watched it: ",
                      result.stderr)
        self.assert_gone(job)


if __name__ == "__main__":
    main()
