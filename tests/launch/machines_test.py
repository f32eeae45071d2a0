#!/usr/bin/env python3
"""Jobs on several machines, which are network namespaces: machines_test.py RANKS (cluster/ranks.cpp)."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import clusters
import job
from clusters import ANSWER
from job import JobTest, main, wait_until
from on_head import OnHead

HOSTS = "node1:2,node2:2"
SECRET = "hunter2-" + "b" * 24


class Machines(OnHead):
    def sleeping(self):
        """A job whose ranks sleep, and their processes."""
        started = self.start("--hosts", HOSTS, "--grace", "0.5", "sleep", "1000")

        def ranks():
            found = self.process_of(started, "sleep")
            return found if len(found) == 4 else None

        return started, wait_until(ranks)

    def process_of(self, started, program):
        return [pid for pid, line in started.processes().items()
                if line.split() and os.path.basename(line.split()[0]) == program]

    @contextlib.contextmanager
    def listening_on(self, node):
        """A port of a machine that is in use."""
        program = ("import socket, sys; s = socket.create_server((str(), 0)); "
                   "print(s.getsockname()[1], flush=True); sys.stdin.read()")
        command = [*self.machines.remote_shell.split(), node, f"{sys.executable} -c '{program}'"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              text=True) as listener:
            yield int(listener.stdout.readline())

    def test_ranks_join_and_know_where_they_are(self):
        script = self.script('echo "$TUTTI_RANK/$TUTTI_WORLD_SIZE" $(hostname) "$TUTTI_LOCAL_RANK" '
                             '"$RANK" "$MASTER_ADDR" "$GIVEN" ${TUTTI_TICKET:+ticket}')
        result = self.run_job("--hosts", HOSTS, "--tee", "all", "--env", "GIVEN=yes", script)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(sorted(result.stdout.splitlines()),
                         [f"[{rank}] {rank}/4 node{1 + rank // 2} {rank % 2} {rank} node1 yes"
                          for rank in range(4)])
        self.assertEqual(result.job.log("worker.3"), b"3/4 node2 1 3 node1 yes\n")
        result = self.run_job("--hosts", HOSTS, RANKS, "join", self.folder)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual([(self.folder / f"rank.{rank}").read_text() for rank in range(4)],
                         ["done"] * 4)

    def test_gpus_are_those_of_each_machine(self):
        script = self.script('echo $(hostname) $TUTTI_RANK $TUTTI_DEVICE $FLAGS_selected_gpus '
                             '"$CUDA_VISIBLE_DEVICES"')
        result = self.run_job("--hosts", "node1,node2", "--gpus=0,1", "--tee", "all", script)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(sorted(result.stdout.splitlines()),
                         [f"[{rank}] node{1 + rank // 2} {rank} {rank % 2} {rank % 2} 0,1"
                          for rank in range(4)])

    def test_the_first_failure_is_named_with_its_machine(self):
        script = self.script('[ "$TUTTI_RANK" = 2 ] && { echo the cause >&2; exit 9; }; sleep 1000')
        result = self.run_job("--hosts", HOSTS, script)
        self.assertEqual(result.returncode, 9)
        self.assertIn("worker 2 (rank 2 of 4) on node2 failed: exit code 9", result.stderr)
        self.assertIn("\n  | the cause\n", result.stderr)
        self.assertIn("told to end: worker 0, worker 1, worker 3", result.stderr)

    def test_a_rank_of_mpi_that_is_killed_is_named(self):
        started = self.start("--hosts", HOSTS, "--grace", "1", RANKS, "barriers", self.folder)
        ready = self.folder / "rank.3"
        wait_until(lambda: ready.exists() and ready.read_text().startswith("ready "))
        victim = [pid for pid in self.process_of(started, os.path.basename(RANKS))
                  if job.variables_of(pid).get("TUTTI_RANK") == "3"]
        os.kill(victim[0], signal.SIGKILL)
        result = started.wait()
        self.assertEqual(result.returncode, 137, result.stderr)
        self.assertIn("worker 3 (rank 3 of 4) on node2 failed: signal 9 (SIGKILL)", result.stderr)
        self.assert_gone(started)

    def test_ctrl_c_reaches_all(self):
        started, _ = self.sleeping()
        os.kill(started.process.pid, signal.SIGINT)
        result = started.wait()
        self.assertEqual(result.returncode, 130, result.stderr)
        self.assert_gone(started)

    def test_nobody_outlives_a_launcher_that_is_killed(self):
        started, _ = self.sleeping()
        os.kill(started.process.pid, signal.SIGKILL)
        self.assert_gone(started)

    def test_nobody_outlives_mpiexec_or_its_daemons(self):
        # Of a daemon the launcher hears by the ranks that it had started or by mpiexec, which misses it, too, and may
        # have had something to say; by whichever comes first.
        lost = r"tutti run: mpiexec, which holds the ranks of several machines together, failed: "
        orphaned = (143, r"tutti run: worker \d .* failed after the process of Open MPI that had started it: "
                         r"signal 15 \(SIGTERM\)\n")
        killed = (137, lost + r"signal 9 \(SIGKILL\)\n(.*\n)*  told to end: worker 0, ")
        missed = (None, lost + r"exit code (\d+)\n")
        for program, possible in (("mpiexec", (killed, orphaned)), ("orted", (orphaned, missed))):
            with self.subTest(killed=program):
                started, _ = self.sleeping()
                os.kill(self.process_of(started, program)[-1], signal.SIGKILL)
                result = started.wait(30)  # as a rule it takes less than a second
                found = [(code, match) for code, told in possible
                         if (match := re.search(f"^{told}", result.stderr, re.MULTILINE))]
                self.assertEqual(len(found), 1, result.stderr)
                code, match = found[0]
                self.assertEqual(result.returncode, code or int(match[1]), result.stderr)
                self.assert_gone(started)

    def test_what_is_wrong_with_a_machine_is_said_with_its_name(self):
        begin = time.monotonic()
        result = self.run_job("--hosts", "node1:1,node9:1", "true")
        self.assertLess(time.monotonic() - begin, 9)  # sooner than one that does not answer
        self.assertEqual(result.returncode, 2)
        self.assertRegex(result.stderr, "node9: Cannot open network namespace")
        with self.listening_on("node2") as port:
            for options in ([f"--servers=node1:{port},node2:{port}"],
                            ["--servers=node2:1,node1:2", f"--http_port={port}"]):
                result = self.run_job(*options, "--workers=node1", "true")
                self.assertEqual(result.returncode, 2, result.stderr)
                self.assertEqual(result.stderr, "tutti run: node2: one of the endpoints: port "
                                                f"{port} of node2 is in use\n")
        result = self.run_job("--hosts", HOSTS, "/nowhere/train")
        self.assertEqual(result.returncode, 2)
        self.assertIn("/nowhere/train: there is no such file on node1", result.stderr)
        self.assertIn("/nowhere/train: there is no such file on node2", result.stderr)

    def test_servers_and_workers_have_machines(self):
        script = self.script('[ "$TUTTI_ROLE" = server ] && sleep 1000; '
                             'echo $TUTTI_ROLE $TUTTI_ROLE_INDEX $(hostname) $PADDLE_CURRENT_ENDPOINT')
        result = self.run_job("--servers", "node1:6170,node2:6171", "--workers",
                              "node2:6172,node1:6173", "--tee", "all", script)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(sorted(result.stdout.splitlines()),
                         ["[worker 0] worker 0 node2 node2:6172",
                          "[worker 1] worker 1 node1 node1:6173"])


class Slurm(OnHead):
    """Its variables name the machines, and its srun reaches them, of which another program pretends
    to be the part that mpiexec uses."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.variables = cls.machines.in_slurm()
        cls.slurm = cls.machines.folder / "slurm"

    def do_before(self, node, text):
        (self.slurm / f"before.{node}").write_text(text)
        self.addCleanup((self.slurm / f"before.{node}").write_text, "")

    def setUp(self):
        super().setUp()
        (self.slurm / "asked").unlink(missing_ok=True)

    def test_machines_are_asked_before_and_then_run_the_ranks(self):
        begin = time.monotonic()
        result = self.run_job("--tee", "all", self.script("echo $TUTTI_RANK $(hostname)"))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertLess(time.monotonic() - begin, 9)  # sooner than who does not answer is waited for
        self.assertEqual(sorted(result.stdout.splitlines()),
                         [f"[{rank}] {rank} node{1 + rank // 2}" for rank in range(4)])
        self.assertEqual((self.slurm / "asked").read_text(), "node1,node2\n" * 2)

    def test_what_is_wrong_with_a_machine_is_said_with_its_name(self):
        (self.folder / "local").mkdir()
        self.script("", "local/train")
        for before, program, expected in (
            (f"mount -t tmpfs tmpfs {self.folder}/local &&", "local/train",
             "tutti run: node2: local/train: there is no such file on node2\n"),
            ("mount -t tmpfs -o size=1m tmpfs /dev/shm &&", "true",
             "tutti run: node2: node2 has too little shared memory"),
        ):
            with self.subTest(before=before):
                self.do_before("node2", before)
                result = self.run_job(program)
                self.assertEqual(result.returncode, 2, result.stderr)
                self.assertTrue(result.stderr.startswith(expected), result.stderr)
                self.assertEqual(len(result.stderr.splitlines()), 1)

    def test_a_machine_that_srun_does_not_reach_is_named(self):
        (self.slurm / "down.node2").touch()
        self.addCleanup((self.slurm / "down.node2").unlink)
        begin = time.monotonic()
        result = self.run_job("true")
        self.assertLess(time.monotonic() - begin, 9)
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertTrue(result.stderr.startswith("tutti run: node2: mpiexec has not started a "),
                        result.stderr)
        self.assertIn("\n  | An ORTE daemon has unexpectedly failed", result.stderr)
        self.assertNotIn("node1: ", result.stderr)

    def test_processes_of_mpiexec_at_the_same_time_do_not_share_their_directory(self):
        (self.slurm / "down.node2").touch()
        self.addCleanup((self.slurm / "down.node2").unlink)
        wrapper = self.machines.program("slurm/mpiexec", '#!/bin/sh\n'
                                        f'echo "$*" >> {self.folder}/commands\n'
                                        f'exec {shutil.which("mpiexec")} "$@"\n')
        self.addCleanup(os.unlink, wrapper)
        result = self.run_job("true")
        self.assertEqual(result.returncode, 2, result.stderr)
        commands = (self.folder / "commands").read_text()
        folders = re.findall(r"--mca orte_top_session_dir (\S+)", commands)
        self.assertEqual(len(set(folders)), 2, commands)  # one for each machine that is asked alone
        self.assertEqual([folder for folder in folders if os.path.exists(folder)], [])


class Unreachable(JobTest):
    """Machines on one of which mpiexec cannot start anything."""

    def start_with(self, agent):
        return self.start("--hosts", f"{os.uname().nodename}:1,198.51.100.1:1", "true", env={
            "OMPI_MCA_plm": "rsh", "OMPI_MCA_plm_rsh_agent": str(self.script(agent, "agent"))})

    def check(self, started):
        result = started.wait()
        self.assertEqual(result.returncode, 2, result.stderr)  # as for all that could not be started
        self.assertRegex(result.stderr, r"worker \d \(rank \d of 2\) on \S+ failed: it did not start\n")

    def test_when_the_ranks_start_the_job_ends(self):
        self.check(self.start_with(ANSWER + "exit 255"))

    def test_a_machine_with_two_names_is_refused(self):
        result = self.start_with('for command; do :; done; exec sh -c "$command"').wait()
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertEqual(result.stderr, f"tutti run: 198.51.100.1: is {os.uname().nodename} again: "
                                        "the ranks of a machine are given by one of its names\n")

    def test_and_mpiexec_is_killed_the_job_ends(self):
        started = self.start_with(ANSWER + "touch asked; exec sleep 1000")
        wait_until((self.folder / "asked").exists)
        for pid, line in started.processes().items():
            if os.path.basename(line.split()[0]) == "mpiexec":
                os.kill(pid, signal.SIGKILL)
        self.check(started)

    def test_a_machine_of_a_list_of_pbs_is_named_before(self):
        (self.folder / "nodes").write_text(f"{os.uname().nodename}\n198.51.100.1\n")
        agent = self.script("echo no route >&2; exit 255", "agent")
        result = self.run_job("true", env={
            "PBS_NODEFILE": "nodes", "OMPI_MCA_plm": "rsh", "OMPI_MCA_plm_rsh_agent": str(agent)})
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn("198.51.100.1: mpiexec has not started a process there", result.stderr)
        self.assertIn("\n  | no route\n", result.stderr)
        self.assertNotIn(f"{os.uname().nodename}: mpiexec", result.stderr)


class Answers(JobTest):
    """A shell that pretends to ask another machine."""

    def ask(self, script, *arguments):
        agent = self.script(script, "agent")
        return self.run_job("--hosts", "other:1", *arguments, "true",
                            env={"OMPI_MCA_plm_rsh_agent": str(agent)})

    def test_refusals_are_passed_on(self):
        result = self.ask("echo 'user@other: Permission denied (publickey).' >&2; exit 255")
        self.assertEqual(result.returncode, 2)
        self.assertIn("other: user@other: Permission denied (publickey).", result.stderr)
        result = self.ask("exit 127")
        self.assertIn("other: there is no ", result.stderr)

    def path_with(self, ssh):
        """A PATH that has mpiexec and, unless that is None, a script that is called ssh."""
        folder = self.folder / "bin"
        folder.mkdir()
        (folder / "mpiexec").symlink_to(shutil.which("mpiexec"))
        if ssh is not None:
            self.script(ssh, "bin/ssh")
        return {"PATH": str(folder), "OMPI_MCA_plm_rsh_agent": ""}  # an empty one is none

    def test_ssh_is_what_path_has(self):
        path = self.path_with('echo "$*" > asked; echo no route >&2; exit 255')
        result = self.run_job("--hosts", "other:1", "/bin/true", env=path)
        self.assertEqual((result.returncode, result.stderr), (2, "tutti run: other: no route\n"))
        self.assertTrue((self.folder / "asked").read_text().startswith(
            "-x -o BatchMode=yes -o ConnectTimeout=8 other cd '"))

    def test_no_ssh_in_path_is_said(self):
        result = self.run_job("--hosts", f"{os.uname().nodename}:1,other:1", "/bin/true",
                              env=self.path_with(None))
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertTrue(result.stderr.startswith(
            "tutti run: ssh, by which other machines are reached, is not in PATH on "), result.stderr)

    def test_an_mpiexec_that_is_not_open_mpi_s_is_refused(self):
        (self.folder / "bin").mkdir()
        self.script("echo HYDRA build details:", "bin/mpiexec")
        result = self.run_job("--hosts", "other:1", "/bin/true", env={"PATH": f"{self.folder}/bin:/bin"})
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertRegex(result.stderr, "by Open MPI's mpiexec, but that in PATH on .* says it is "
                                        "'HYDRA build details:'\n$")

    def test_who_ignores_sigchld_hears_that_an_agent_has_ended(self):
        launcher = self.script(f'trap "" CHLD; exec {job.TUTTI} "$@"', "ignoring")
        self.addCleanup(setattr, job, "TUTTI", job.TUTTI)
        job.TUTTI = str(launcher)
        result = self.ask("echo no route >&2; exit 255")
        self.assertEqual((result.returncode, result.stderr), (2, "tutti run: other: no route\n"))

    def test_an_agent_that_cannot_be_run_is_named(self):
        agent = self.folder / "agent"
        result = self.run_job("--hosts", "other:1", "true", env={"OMPI_MCA_plm_rsh_agent": str(agent)})
        self.assertEqual((result.returncode, result.stderr),
                         (2, f"tutti run: other: cannot run {agent}: No such file or directory\n"))

    def test_the_files_of_the_program_are_asked_for_and_its_arguments_stay_here(self):
        self.script("", "train.py")
        python = self.script("", "python")
        agent = self.script("""
echo "$*" > asked
rm python
for command; do :; done
exec sh -c "$command" """, "agent")
        result = self.run_job("--hosts", "other:1", "train.py", SECRET, env={
            "OMPI_MCA_plm_rsh_agent": str(agent), "TUTTI_PYTHON": str(python)})
        self.assertEqual(result.returncode, 2)
        self.assertIn(f"other: {python}: there is no such file on ", result.stderr)
        asked = (self.folder / "asked").read_text()
        self.assertIn(f"'check' '--ranks' '1' '--' '{python}' 'train.py'", asked)
        self.assertNotIn(SECRET, asked)

    def test_who_outlives_the_answer_is_not_waited_for(self):
        agent = self.script("sleep 12 & echo 'no route' >&2; exit 255", "agent")
        result = self.start("--hosts", "other:1", "true",
                            env={"OMPI_MCA_plm_rsh_agent": str(agent)}).wait()
        self.assertIn("other: no route", result.stderr)

    def test_versions_are_compared(self):
        result = self.ask("echo tutti-answer 0 version 0.0.1")
        self.assertEqual(result.returncode, 2)
        self.assertIn("other: its tutti is 0.0.1, but here it is ", result.stderr)

    def test_threads_are_those_of_the_machine(self):
        result = self.ask(ANSWER + "exit 255")
        self.assertIn("; OMP_NUM_THREADS=1234; ", result.stderr)

    def test_clocks_are_compared(self):
        agent = self.script(r"""
case "$*" in *"'check'"*) ;; *) exit 255;; esac
for command; do :; done
sh -c "$command" | sed 's/ clock .*/ clock 1000000000.5/'""", "agent")
        result = self.run_job("--hosts", "198.51.100.1:1", "true",
                              env={"OMPI_MCA_plm_rsh_agent": str(agent)})
        self.assertRegex(result.stderr, r"; the clock of 198\.51\.100\.1 is \d{9} s behind; ")

    def test_of_machines_with_the_same_command_the_first_starts_the_ranks(self):
        own = os.uname().nodename
        for options in (["--ips", f"198.51.100.1,{own}"],
                        ["--servers", f"{own}:6170", "--workers", "198.51.100.1"]):
            result = self.run_job(*options, "false")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn("198.51.100.1, which is named first, starts the ranks", result.stderr)
        result = self.run_job("--ips", "198.51.100.1,198.51.100.2", "true")
        self.assertEqual(result.returncode, 2)
        self.assertIn("is none of them", result.stderr)
        self.assertEqual(self.run_job("--ips", "127.0.0.1", "true").returncode, 0)

    def test_a_name_that_each_machine_has_for_itself_names_none_of_several(self):
        for options, refused in (
            (["--servers", "127.0.0.1:6170", "--workers", "198.51.100.1"], "--servers names 127.0.0.1"),
            (["--servers", "198.51.100.1:6170", "--workers", "localhost,198.51.100.1"],
             "--workers names localhost"),
            (["--servers", "[::1]:6170", "--workers", "198.51.100.1"], "--servers names ::1"),
            (["--servers=198.51.100.1:1", "--workers=198.51.100.1", "--heter_workers=127.1.2.3"],
             "--heter_workers names 127.1.2.3"),
            (["--ips", "localhost,198.51.100.1"], "--ips names localhost"),
        ):
            for more in ([], ["--dry-run"]):
                with self.subTest(options=options, more=more):
                    result = self.run_job(*more, *options, "false")
                    self.assertEqual(result.returncode, 2, result.stderr)
                    self.assertIn(f"{refused} beside 198.51.100.1, which has one of its own",
                                  result.stderr)


if __name__ == "__main__":
    RANKS = sys.argv.pop(1)
    if not clusters.is_possible():
        print("SKIPPED in part: no network namespaces here (they need root and iproute2)")
    main()
