#!/usr/bin/env python3
"""How wrappers on other machines and the launcher meet, and lose whoever has started them."""

import os
import subprocess

import job
from clusters import ANSWER
from job import JobTest, main

# Between wrappers and the launcher: ADDRESS VERSION. Says its port; makes the version another one.
OTHER_VERSION = """
import socket, sys, threading
host, port = sys.argv[1].split(",")[-1].split(":")
version = f" {sys.argv[2]} ".encode()
def pass_on(source, sink):
    try:
        while data := source.recv(65536):
            sink.sendall(data.replace(version, version.replace(b"0", b"9")))
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        pass
with socket.create_server(("127.0.0.1", 0)) as server:
    server.settimeout(0.1)
    with open("port.new", "w") as file: print(server.getsockname()[1], file=file)
    __import__("os").rename("port.new", "port")
    pumps = []
    while not pumps or any(pump.is_alive() for pump in pumps):
        try:
            caller = server.accept()[0]
        except TimeoutError:
            continue
        caller.setblocking(True)
        launcher = socket.create_connection((host, int(port)))
        for ends in ((caller, launcher), (launcher, caller)):
            pumps.append(threading.Thread(target=pass_on, args=ends))
            pumps[-1].start()
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


class Wrappers(JobTest):
    """What mpiexec has started, which is a script here: start RANK starts a wrapper."""

    def run_with(self, mpiexec, *program):
        agent = self.script(ANSWER, "agent")
        self.script("""
[ "$1" = --version ] && { echo "mpiexec (OpenRTE) 4"; exit; }
for addresses; do :; done
start() { OMPI_COMM_WORLD_RANK=$1 "$TUTTI_LAUNCHER" rank --connect "$addresses" & }
""" + mpiexec, "mpiexec")
        job = self.start("--hosts", f"{os.uname().nodename}:1,198.51.100.1:1", *program, env={
            "PATH": f"{self.folder}:{os.environ['PATH']}", "OMPI_MCA_plm_rsh_agent": str(agent)})
        result = job.wait(30)
        self.assert_gone(job)
        return result

    def test_all_start(self):
        script = self.script("echo here $TUTTI_RANK")
        result = self.run_with("start 0; start 1; wait", "--tee", "all", script)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(sorted(result.stdout.splitlines()), ["[0] here 0", "[1] here 1"])

    def test_who_cannot_call_is_not_waited_for(self):
        result = self.run_with('start 0; echo "tutti rank: b cannot reach a" >&2; exec sleep 1000',
                               "true")
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("\n  | tutti rank: b cannot reach a\n", result.stderr)

    def test_why_a_wrapper_ended_is_shown(self):
        result = self.run_with("ulimit -n 9; start 0; start 1; wait", "sleep", 1000)
        self.assertNotEqual(result.returncode, 0)
        self.assertRegex(result.stderr, "mpiexec says:\n(  .*\n)*  . tutti rank: cannot make a ")

    def test_who_has_started_a_wrapper_may_end_before_the_ranks_begin(self):
        result = self.run_with("""
(start 0; until ls -l /proc/$!/fd 2> /dev/null | grep -q socket; do sleep 0.01; done)
start 1; wait""", "sleep", 3)
        self.assertEqual(result.returncode, 143, result.stderr)
        self.assertIn("failed after the process of Open MPI that had started it", result.stderr)

    def test_another_version_is_refused_with_the_machine_s_name(self):
        (self.folder / "proxy.py").write_text(OTHER_VERSION, encoding="utf-8")
        version = subprocess.run([job.TUTTI, "--version"], capture_output=True, text=True, check=True)
        result = self.run_with(f"""
python3 proxy.py "$addresses" {version.stdout.split()[1]} &
until [ -e port ]; do sleep 0.01; done
addresses=127.0.0.1:$(cat port)
start 0; start 1; wait""", "touch", "started")
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertRegex(result.stderr, f"{os.uname().nodename}: its tutti is .*, but here it is ")
        self.assertFalse((self.folder / "started").exists())

    def test_who_has_started_wrappers_is_missed_however_many_threads_it_had(self):
        (self.folder / "threads.py").write_text(THREADS, encoding="utf-8")
        script = self.script("touch begun.$TUTTI_RANK; exec sleep 1000")
        result = self.run_with('python3 threads.py "$addresses"; sleep 5', script)
        self.assertEqual(result.returncode, 143, result.stderr)
        self.assertIn("failed after the process of Open MPI that had started it", result.stderr)


if __name__ == "__main__":
    main()
