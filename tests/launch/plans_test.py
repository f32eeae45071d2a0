#!/usr/bin/env python3
"""What ranks are told and what is never told: roles, variables, options, and what is refused."""

import os
import re
import socket
import subprocess

from job import JobTest, free_port, main

PRINT_VARIABLES = """
import json, os, sys
name = f"{os.environ['TUTTI_ROLE']}.{os.environ['TUTTI_ROLE_INDEX']}.json"
with open("new." + name, "w") as file:
    json.dump(dict(os.environ), file)
os.rename("new." + name, name)
"""
# Servers wait for their end.
PRINT_AS_SERVERS_DO = PRINT_VARIABLES + """
import time
while os.environ["TUTTI_ROLE"] == "server": time.sleep(1)
while len([name for name in os.listdir() if name.startswith("server.")]) < int(sys.argv[1]): pass
"""
SECRET = "hunter2-" + "b" * 24
HAS_GPU = any(re.fullmatch(r"nvidia\d+|dxg", name) for name in os.listdir("/dev"))


class Variables(JobTest):
    def ranks(self, *options, servers=0, env=None):
        """The environment of each rank, by its role and index."""
        import json

        program = self.folder / "rank.py"
        program.write_text(PRINT_AS_SERVERS_DO, encoding="utf-8")
        for old in self.folder.glob("*.json"):
            old.unlink()
        result = self.run_job(*options, program, servers, env=env)
        self.assertEqual(result.returncode, 0, result.stderr)
        return {path.stem: json.loads(path.read_text()) for path in self.folder.glob("*.json")}

    def assert_has(self, variables, **expected):
        self.assertEqual({name: variables.get(name) for name in expected}, expected)

    def test_ranks_without_roles(self):
        ranks = self.ranks("-n", 3)
        self.assertEqual(sorted(ranks), ["worker.0", "worker.1", "worker.2"])
        endpoints = ranks["worker.0"]["PADDLE_TRAINER_ENDPOINTS"].split(",")
        self.assertEqual(len(set(endpoints)), 3)
        for rank in range(3):
            variables = ranks[f"worker.{rank}"]
            number = str(rank)
            self.assert_has(
                variables, TUTTI_RANK=number, TUTTI_WORLD_SIZE="3", TUTTI_LOCAL_RANK=number,
                TUTTI_LOCAL_SIZE="3", TUTTI_ROLE="worker", TUTTI_ROLE_INDEX=number,
                TUTTI_ATTEMPT="0", TUTTI_TICKET=ranks["worker.0"]["TUTTI_TICKET"], RANK=number,
                WORLD_SIZE="3", LOCAL_RANK=number, LOCAL_WORLD_SIZE="3", MASTER_ADDR="127.0.0.1",
                PADDLE_TRAINER_ID=number, PADDLE_TRAINERS_NUM="3", TRAINING_ROLE="TRAINER",
                PADDLE_CURRENT_ENDPOINT=endpoints[rank],
                PADDLE_TRAINER_ENDPOINTS=",".join(endpoints), POD_IP="127.0.0.1",
                PADDLE_PORT=endpoints[rank].split(":")[1], PADDLE_PSERVERS_IP_PORT_LIST=None)
        self.assertRegex(ranks["worker.0"]["TUTTI_TICKET"], "^[0-9a-f]{256}$")
        again = self.ranks("-n", 3)
        self.assertNotEqual(ranks["worker.0"]["TUTTI_TICKET"], again["worker.0"]["TUTTI_TICKET"])

    def test_servers_workers_and_heter_workers(self):
        port = free_port()
        ranks = self.ranks("--server_num=2", "--worker_num=2", "--heter_worker_num=2",
                           f"--http_port={port}", servers=2)
        self.assertEqual(len(ranks), 6)
        servers = [f"127.0.0.1:{ranks[f'server.{i}']['PADDLE_PORT']}" for i in range(2)]
        heter = [f"127.0.0.1:{ranks[f'heter_worker.{i}']['PADDLE_PORT']}" for i in range(2)]
        for name, variables in ranks.items():
            role, index = name.split(".")
            self.assert_has(
                variables, TUTTI_WORLD_SIZE="6", TUTTI_LOCAL_SIZE="6", TUTTI_ROLE_INDEX=index,
                TUTTI_RANK=str(int(index) + ["worker", "heter_worker", "server"].index(role) * 2),
                TRAINING_ROLE={"worker": "TRAINER", "server": "PSERVER"}.get(role, "HETER_TRAINER"),
                PADDLE_TRAINERS_NUM="2", PADDLE_PSERVERS_IP_PORT_LIST=",".join(servers),
                PADDLE_HETER_TRAINER_IP_PORT_LIST=",".join(heter),
                PADDLE_TRAINER_ID=None if role == "server" else index,
                PADDLE_GLOO_HTTP_ENDPOINT=f"127.0.0.1:{port}",
                RANK=index if role == "worker" else None,
                WORLD_SIZE="2" if role == "worker" else None)

    def test_endpoints_of_the_user_s(self):
        port = free_port()
        ranks = self.ranks(f"--servers=127.0.0.1:{port}", "--workers=127.0.0.1,localhost", servers=1)
        self.assert_has(ranks["server.0"], PADDLE_PORT=str(port), POD_IP="127.0.0.1",
                        PADDLE_CURRENT_ENDPOINT=f"127.0.0.1:{port}")
        self.assertRegex(ranks["worker.0"]["PADDLE_TRAINER_ENDPOINTS"],
                         r"^127\.0\.0\.1:\d+,localhost:\d+$")

    def test_gpus_are_shared_out(self):
        # Without a GPU ranks are counted by them, and use the CPU.
        for options, env, count in ((["--gpus=0,1,2,3"], {}, 4),
                                    (["--gpus", "1,3"], {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, 2),
                                    ([], {"CUDA_VISIBLE_DEVICES": "2,3"}, 2),
                                    (["--nproc_per_node=gpu"], {"CUDA_VISIBLE_DEVICES": "2"}, 1),
                                    (["--nproc_per_node", "2", "--gpus=0,1,2,3"], {}, 2)):
            with self.subTest(options=options, env=env):
                self.assertEqual(len(self.ranks(*options, env=env)), count)
                said = self.run_job(*options, "true", env=env).stderr
                self.assertNotEqual("no GPU was found here, all ranks use the CPU" in said, HAS_GPU)

    def test_threads_and_python_s_buffers_unless_the_user_has_chosen(self):
        bare = {name: "" for name in ("OMP_NUM_THREADS", "PYTHONUNBUFFERED")}
        cores = len(os.sched_getaffinity(0))
        self.assert_has(self.ranks("-n", 2, env=bare)["worker.1"], PYTHONUNBUFFERED="1",
                        OMP_NUM_THREADS=str(max(1, cores // 2)))
        chosen = {"OMP_NUM_THREADS": "7", "PYTHONUNBUFFERED": "2"}
        self.assert_has(self.ranks("-n", 2, env=chosen)["worker.1"], **chosen)

    def test_binding(self):
        program = self.folder / "cores.py"
        program.write_text("import os; print(sorted(os.sched_getaffinity(0)))", encoding="utf-8")
        cores = sorted(os.sched_getaffinity(0))
        ranks = min(2, len(cores))
        each = len(cores) // ranks
        result = self.run_job("-n", ranks, "--bind", "core", "--tee", "all", program)
        expected = [f"[{i}] {cores[i * each:(i + 1) * each]}" for i in range(ranks)]
        if ranks == 1:
            expected = [str(cores)]
        self.assertEqual(sorted(result.stdout.splitlines()), expected)
        self.assertEqual(self.run_job("-n", 1, "--bind", "none", program).stdout, f"{cores}\n")
        too_many = self.run_job("-n", len(cores) + 1, "--bind", "core", program)
        self.assertEqual(too_many.returncode, 2)
        self.assertIn("--bind core: ", too_many.stderr)

    def test_who_has_started_the_launcher_says_nothing_to_its_ranks(self):
        others = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1", "PMIX_RANK": "0",
                  "PMI_RANK": "0", "PMI_SIZE": "1", "TORCHELASTIC_RUN_ID": "1",
                  "PADDLE_PSERVERS_IP_PORT_LIST": "127.0.0.1:1",
                  "PADDLE_HETER_TRAINER_IP_PORT_LIST": "127.0.0.1:2"}
        kept = {"OMPI_MCA_btl": "self", "PMIX_MCA_gds": "hash"}
        for variables in self.ranks("-n", 2, env={**others, **kept}).values():
            self.assert_has(variables, **dict.fromkeys(others), **kept)
        # On several machines ranks meet through MPI.
        dry = self.run_job("--dry-run", "--hosts", "198.51.100.1:1,198.51.100.2:1", "true",
                           env={"TUTTI_TICKET": "f" * 256})
        self.assertIn("TUTTI_RANK=1", dry.stdout)
        self.assertNotIn("TUTTI_TICKET", dry.stdout)

    def test_env_gives_variables(self):
        variables = self.ranks("--env", "A=1=2", "--env", "HOME", env={"A": "0"})["worker.0"]
        self.assert_has(variables, A="1=2", HOME=os.environ["HOME"])


class Secrets(JobTest):
    def test_values_of_the_user_s_are_never_shown(self):
        env = {"SECRET": SECRET, "OTHER": SECRET}
        options = ["-n", 2, "--env", "SECRET", "--env", f"THIRD={SECRET}"]
        script = self.script('[ "$SECRET$THIRD" = "' + SECRET * 2 + '" ] || exit 1; exit 3')
        for more in (["--dry-run"], ["--restart", 1], ["--tee", "all"]):
            with self.subTest(more=more):
                result = self.run_job(*more, *options, script, env=env)
                self.assertEqual(result.returncode, 0 if more == ["--dry-run"] else 3)
                self.assertNotIn(SECRET, result.stdout + result.stderr)
                for log in self.folder.rglob("*.log"):
                    self.assertNotIn(SECRET.encode(), log.read_bytes())
        dry = self.run_job("--dry-run", *options, script, env=env).stdout
        self.assertIn("  SECRET (not shown)\n", dry)
        self.assertIn("  TUTTI_TICKET (not shown)\n", dry)
        self.assertNotRegex(dry, "[0-9a-f]{64}")
        self.assertNotIn("OTHER", dry)

    def test_a_dry_run_starts_and_leaves_nothing(self):
        result = self.run_job("--dry-run", "-n", 2, "touch", "started")
        self.assertEqual(result.returncode, 0)
        self.assertIn("2 workers on", result.stdout)
        self.assertIn("worker 1: rank 1", result.stdout)
        self.assertEqual(list(self.folder.iterdir()), [])


class Refused(JobTest):
    def refused(self, *arguments, env=None):
        result = self.run_job(*arguments, env=env)
        self.assertEqual((result.returncode, result.stdout), (2, ""), result.stderr)
        self.assertEqual(list(self.folder.glob("log/*")), [])
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        return result.stderr

    def test_options(self):
        port = free_port()
        for arguments, expected in (
            ([], "needs a program"),
            (["-m"], "needs the name of a module"),
            (["--nprocs", "2", "true"], "has no option --nprocs"),
            (["-n", "0", "true"], "-n is '0', but must be a number from 1 to 4096, auto or gpu"),
            (["-n", "two", "true"], "-n is 'two'"),
            (["--nproc_per_node"], "--nproc_per_node needs a value"),
            (["--dry-run=1", "true"], "--dry-run takes no value"),
            (["--timeout", "-1", "true"], "--timeout is '-1'"),
            (["--timeout", "nan", "true"], "--timeout is 'nan'"),
            (["--restart", "x", "true"], "--restart is 'x'"),
            (["--tee", "0,x", "true"], "--tee is '0,x'"),
            (["--bind", "numa", "true"], "none, core, socket or auto"),
            (["--gpus", "0,0", "true"], "names no GPU twice"),
            (["--gpus", "0,,1", "true"], "--gpus is '0,,1'"),
            (["--gpus", "0,x", "true"], "--gpus is '0,x', but must be a list of numbers of GPUs"),
            (["--gpus=-1", "true"], "--gpus is '-1'"),
            (["--prefix", "{rank} {foo}: ", "true"],
             "--prefix has {foo}, but only these are known: {rank}, {local_rank}, {role}, {index}, "
             "{host}, {time}"),
            (["--gpus=0,1", "-n3", "true"], "has no option -n3"),
            (["--env", "NO_SUCH_VARIABLE", "true"], "--env NO_SUCH_VARIABLE: there is no such"),
            (["--servers=127.0.0.1", "--workers=127.0.0.1", "true"], "'127.0.0.1' has no port"),
            (["--servers=127.0.0.1:70000", "--workers=127.0.0.1", "true"], "ports to 65535"),
            (["--servers=:1", "--workers=127.0.0.1", "true"], "has no host"),
            (["--servers=::1", "--workers=127.0.0.1", "true"], "'::1' has no port"),
            (["--server_num=1", "true"], "servers without a worker"),
            (["--worker_num=1", "true"], "workers without a server"),
            (["--server_num=1", "--worker_num=2", "-n", "2", "true"], "--nproc_per_node is for"),
            (["--server_num=2", "--servers=127.0.0.1:1", "--worker_num=1", "true"],
             "--server_num is 2, but --servers names 1"),
            (["--http_port=1", "true"], "--http_port 1 is for jobs with servers"),
            ([f"--servers=127.0.0.1:{port},127.0.0.1:{port}", "--worker_num=1", "true"],
             f"server 1 at 127.0.0.1:{port}: port {port} of"),
            (["--dry-run", "--servers=127.0.0.1:1,127.0.0.1:1", "--worker_num=1", "true"],
             "server 1 at 127.0.0.1:1: port 1 of"),
        ):
            with self.subTest(arguments=arguments):
                self.assertIn(expected, self.refused(*arguments))

    def test_several_tasks_of_a_step_but_one_on_each_machine(self):
        step = {"SLURM_JOB_NODELIST": os.uname().nodename, "SLURM_STEP_NUM_TASKS": "4"}
        for options in ((), ("--server_num=1", "--worker_num=1"), ("--hosts=localhost:2",)):
            with self.subTest(options=options):
                self.assertIn("srun has started 4 processes of tutti run",
                              self.refused(*options, "true", env=step))
        result = self.run_job("--ips=127.0.0.1", "true", env=step)
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_gpus_that_are_not_there_or_cannot_be_shared(self):
        visible = {"CUDA_VISIBLE_DEVICES": "0,1"}
        self.assertIn("--gpus names 2, but CUDA_VISIBLE_DEVICES is 0,1",
                      self.refused("--gpus=0,2", "true", env=visible))
        self.assertIn("has no GPU", self.refused("-n", "gpu", "true", env={"CUDA_VISIBLE_DEVICES": ""}))

    def test_programs(self):
        (self.folder / "text").write_text("no program", encoding="utf-8")
        for program, expected in (("nonesuch", "no program of that name is in PATH"),
                                  ("text", "(for the one that is here: ./text)"),
                                  ("./text", "./text is not executable"),
                                  ("./none", "./none: there is no such file"),
                                  ("none.py", "none.py: there is no such file"),
                                  (".", "no program"), ("./", "is a folder")):
            with self.subTest(program=program):
                self.assertIn(expected, self.refused("-n", 2, program))

    def test_a_port_in_use(self):
        with socket.socket() as used:
            used.bind(("127.0.0.1", 0))
            used.listen()
            port = used.getsockname()[1]
            self.assertIn(f"port {port} of {os.uname().nodename} is in use",
                          self.refused(f"--servers=127.0.0.1:{port}", "--worker_num=1", "true"))
            shown = self.run_job("--dry-run", f"--servers=127.0.0.1:{port}", "--worker_num=1", "true")
            self.assertEqual(shown.returncode, 0, shown.stderr)

    def test_too_little_shared_memory(self):
        room = os.statvfs("/dev/shm")
        ranks = room.f_blocks * room.f_frsize // (2 << 20) + 1  # others take and free some meanwhile
        if ranks > 4096:
            self.skipTest("/dev/shm has room for all")
        self.assertIn("too little shared memory", self.refused("-n", ranks, "true"))


class Programs(JobTest):
    def test_modules_and_options_after_the_program(self):
        (self.folder / "module.py").write_text("import sys; print(sys.argv[1:])", encoding="utf-8")
        result = self.run_job("-n", 1, "-m", "module", "-n", "x", "--help", "--", "-m")
        self.assertEqual(result.stdout, "['-n', 'x', '--help', '--', '-m']\n")
        result = self.run_job("--nproc-per-node=1", "--", "module.py", "a b")
        self.assertEqual(result.stdout, "['a b']\n")

    def test_the_python_of_the_caller_s(self):
        python = self.script('echo mine "$@"', "python")
        env = {"TUTTI_PYTHON": str(python)}
        self.script("", "x.py")
        self.assertEqual(self.run_job("-n", 1, "x.py", "1", env=env).stdout, "mine x.py 1\n")

    def test_help_and_version(self):
        program = os.environ["TUTTI_LAUNCHER"]
        text = subprocess.run([program, "run", "--help"], capture_output=True, text=True)
        self.assertEqual(text.returncode, 0)
        for option in ("--nproc_per_node", "--gpus", "--server_num", "--worker_num", "--servers",
                       "--heter_worker_num", "--workers", "--heter_workers", "--http_port",
                       "--log_dir", "--bind", "--env", "--tee", "--prefix", "--timeout",
                       "--restart", "--dry-run"):
            self.assertIn(option, text.stdout)
        version = subprocess.run([program, "--version"], capture_output=True, text=True)
        self.assertTrue(re.match(r"tutti \d+\.\d+\.\d+\n$", version.stdout), version.stdout)
        for words, wrong in (((), "no command is given"), (("rn", "true"), "there is no command 'rn'")):
            refused = subprocess.run([program, *words], capture_output=True, text=True)
            self.assertEqual((refused.returncode, refused.stdout), (2, ""))
            self.assertIn(f"tutti: {wrong}; these are known:\ntutti run ", refused.stderr)


if __name__ == "__main__":
    main()
