#!/usr/bin/env python3
"""Checks how gpu-check runs its steps, on a bundle of stand-ins: running_test.py FOLDER, that of
gpu-check."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest
from pathlib import Path

import made_up
import plan
import run
import targets

# Stand-ins of the programs, in sh. They find their canned rows in the folder `canned`.
CANNED = 'canned=$(dirname "$0")/../canned\n'
WRITE_SUITES = CANNED + """for word; do
  case $word in *=xml:*) sed "s/SIZE/${RANKS:-1}/" "$canned/suites" >"${word#*=xml:}" ;; esac
done
"""
PROGRAMS = {
    "bin/gpu_kernels_bench": CANNED + """case "$*" in
  *--devices*) cat "$canned/devices" ;;
  *2097152*) cat "$canned/kernels.2Mi" ;;
  *) cat "$canned/kernels" ;;
esac
""",
    "bin/gpu_tests": WRITE_SUITES,
    "bin/gpu_ranks_test": WRITE_SUITES,
    "bin/unit_tests": WRITE_SUITES,
    "bin/gpu_allreduce_bench": CANNED + 'sed "s/SIZE/$RANKS/" "$canned/all_reduce"\n',
    "bin/killed_rank_bench": CANNED + 'cat "$canned/killed_rank"\n',
    "bin/mnist_dist": CANNED + """while [ $# -gt 0 ]; do
  case $1 in --ranks) ranks=$2 ;; --epochs) epochs=$2 ;; --json) json=$2 ;; esac
  shift
done
head -n "$epochs" "$canned/mnist" | sed "s/SIZE/$ranks/" >"$json"
""",
    "ompi/usr/bin/orterun": 'RANKS=$2 && shift 2 && export RANKS && exec "$@"\n',
    "path/nvidia-smi": "echo driver\n",
    "path/compute-sanitizer": 'while [ ! -x "$1" ]; do shift; done\nexec "$@"\n',
}


class Bundle:
    """A folder like the one that `make gpu-bundle` packs."""

    def __init__(self, folder, devices="H200, compute capability 9.0, 143771 MiB\n"):
        self.root = Path(folder, "tutti-gpu")
        shutil.copytree(sys.argv[1], self.root / "check",
                        ignore=shutil.ignore_patterns("__pycache__"))
        for name, body in PROGRAMS.items():
            self.program(name, body)
        self.root.joinpath("bin/topk_vs_torch.py").write_text(
            'print(\'{"kernel": "torch", "checked": true}\')\n', encoding="utf-8")
        for name in ("canned", "data"):
            (self.root / name).mkdir()
        self.can("devices", devices)
        self.can("suites", made_up.suite("SIZE"))
        for name, rows in made_up.rows_of_steps(1).items():
            self.can(name.removesuffix(".2"), *rows)

    def program(self, name, body):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{body}", encoding="utf-8")
        path.chmod(0o755)

    def can(self, name, *rows):
        """What a stand-in prints. Where it launches ranks, or is launched, it counts them."""
        text = "".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows)
        if name in ("all_reduce", "mnist"):
            text = text.replace('"world_size": 2', '"world_size": SIZE')
            text = text.replace('"world_size": 1', '"world_size": SIZE')
        self.root.joinpath("canned", name).write_text(text, encoding="utf-8")

    def start(self, *arguments):
        environment = {**os.environ, "PATH": f"{self.root}/path:{os.environ['PATH']}",
                       "TMPDIR": str(self.root.parent)}
        for name in ("TUTTI_NCCL_LIB", "TUTTI_CUBLAS_LIB"):
            environment.pop(name, None)
        return subprocess.Popen([sys.executable, "-B", f"{self.root}/check/main.py", *arguments],
                                env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                text=True)

    def check(self, *arguments):
        """(status, what was printed)."""
        program = self.start(*arguments)
        output, _ = program.communicate(timeout=50)
        return program.returncode, output

    def archived(self, name):
        with tarfile.open(self.root / "gpu-check.tgz") as archive:
            return archive.extractfile(f"gpu-check/{name}").read().decode()


class Whole(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def test_list_says_each_step_and_target_and_needs_no_gpu(self):
        program = subprocess.run([sys.executable, "-B", f"{sys.argv[1]}/main.py", "--list"],
                                 capture_output=True, text=True, check=True)
        for step in plan.plan(1):
            self.assertRegex(program.stdout, rf"(?m)^ *{step.name} +{step.limit} s  ")
            skipped = f"{step.about} (skipped: needs 2 GPUs)" in program.stdout
            self.assertEqual(skipped, step.gpus > 1)
        for target in targets.targets(1):
            self.assertIn(f"{target.figure} (from {target.step})", program.stdout)

    def test_list_on_two_gpus_says_what_is_run_there_and_runs_nothing(self):
        bundle = Bundle(self.folder, devices="H200\nH200\n")
        bundle.program("bin/gpu_tests", f"touch {self.folder}/was_run\n")
        status, output = bundle.check("--list")
        self.assertEqual(status, 0, output)
        self.assertIn("On H200, H200, in this order", output)
        self.assertNotIn("needs 2 GPUs", output)
        self.assertRegex(output, r"python.torch .*\(skipped: the bundle has no Python package\)")
        self.assertFalse(Path(self.folder, "was_run").exists())

    def test_no_gpu_is_status_77_and_why(self):
        bundle = Bundle(self.folder)
        bundle.program("bin/gpu_kernels_bench",
                       "echo 'no GPU is used: the driver is missing' >&2\nexit 77")
        status, output = bundle.check()
        self.assertEqual((status, output), (77, "no GPU is used: the driver is missing\nno GPU\n"))
        self.assertFalse((bundle.root / "gpu-check.tgz").exists())

    def test_a_bundle_that_cannot_look_for_gpus_is_a_failure(self):
        bundle = Bundle(self.folder)
        bundle.program("bin/gpu_kernels_bench", "echo 'no libmpi' >&2\nexit 127")
        status, output = bundle.check()
        self.assertEqual(status, 1, output)
        self.assertIn("no libmpi", output)

    def test_where_all_is_well(self):
        bundle = Bundle(self.folder)
        status, output = bundle.check()
        self.assertEqual(status, 0, output)
        self.assertIn("all passed", output)
        result = json.loads(bundle.archived("result.json"))
        self.assertEqual([step["name"] for step in result["steps"]],
                         [step.name for step in plan.plan(1)])
        verdicts = {target["name"]: target["verdict"] for target in result["targets"]}
        for name in ("all_reduce", "enqueue"):
            self.assertEqual(verdicts.pop(name), "not measurable on one GPU")
        self.assertEqual(set(verdicts.values()), {"met"})
        self.assertIn("cub_sort_pairs", bundle.archived("kernels.log"))
        self.assertRegex(output, r"gpu_ranks.each +skip .* needs 2 GPUs")
        self.assertRegex(output, r"python.torch +skip .* the bundle has no Python package")

    def test_a_figure_whose_step_was_skipped_is_no_failure(self):
        bundle = Bundle(self.folder)
        (bundle.root / "data").rmdir()
        status, output = bundle.check()
        self.assertEqual(status, 0, output)
        self.assertRegex(output, r"(?m)^mnist +skip .* the bundle has no MNIST$")
        self.assertRegex(output, r"(?m)^mnist +not measured .*the bundle has no MNIST$")

    def test_on_two_gpus_all_reduce_is_judged(self):
        bundle = Bundle(self.folder, devices="H200\nH200\n")
        bundle.can("all_reduce", *made_up.all_reduce(2, 2))
        status, output = bundle.check()
        self.assertEqual(status, 0, output)
        self.assertRegex(output, r"gpu_ranks.each +pass")
        self.assertRegex(output, r"(?m)^all_reduce +met ")

    def test_what_fails_is_said_and_the_rest_goes_on(self):
        bundle = Bundle(self.folder)
        bundle.program("ompi/usr/bin/orterun", 'shift 2 && RANKS=1 && export RANKS && exec "$@"\n')
        bundle.program("bin/unit_tests", WRITE_SUITES + "echo 'out of paper'\nexit 3\n")
        bundle.program("bin/killed_rank_bench", "kill -SEGV $$\n")
        (bundle.root / "bin/gpu_tests").unlink()
        slow = [{**row, "us": 70.0} for row in made_up.kernels(made_up.FEW)]
        bundle.can("kernels.2Mi", *slow)
        status, output = bundle.check()
        self.assertEqual(status, 1, output)
        for line in (r"gpu_tests +fail .*No such file",
                     r"gpu_ranks.2 +fail .*world_size is 1, not 2",
                     r"all_reduce.2 +fail .*4 bytes: world_size is 1, not 2",
                     r"unit_tests +fail .*status 3", r"(?m)^    \| out of paper",
                     r"killed_rank +fail .*status -11: nothing was measured", r"kernels +pass",
                     r"enqueue.added +not measured .*world_size is 1, not 2", r"top_k.2Mi +missed .*70",
                     r"killed_rank +not measured .*nothing was measured", "NOT ALL PASSED"):
            self.assertRegex(output, line)

    def test_a_missed_target_is_a_failure(self):
        bundle = Bundle(self.folder)
        bundle.can("killed_rank", {**made_up.killed_rank()[0], "named_seconds": 6.0})
        status, output = bundle.check()
        self.assertEqual(status, 1, output)
        self.assertNotRegex(output, r" fail ")
        self.assertRegex(output, r"(?m)^killed_rank +missed .*slowest rank 6")

    def test_without_time_nothing_is_begun(self):
        bundle = Bundle(self.folder)
        status, output = bundle.check("--seconds", "6")
        self.assertEqual(status, 1, output)
        self.assertRegex(output, r"(?m)^gpu_tests +fail +0 s  no time left$")
        self.assertRegex(output, r"enqueue.added +not measured .*no time left")

    def test_ended_from_outside_it_leaves_an_archive_and_no_process(self):
        bundle = Bundle(self.folder)
        bundle.program("bin/unit_tests", f"echo $$ >{self.folder}/part && mv {self.folder}/part "
                       f"{self.folder}/pid && exec sleep 1000\n")
        program = bundle.start()
        pid = Path(self.folder, "pid")
        while program.poll() is None and not pid.exists():
            time.sleep(0.01)
        program.send_signal(signal.SIGTERM)
        program.communicate(timeout=30)
        self.assertNotEqual(program.returncode, 0)
        self.assertFalse(Path("/proc", pid.read_text().strip()).exists())
        self.assertIn('"gpu_ranks.2"', bundle.archived("result.json"))
        folders = [path.name for path in Path(self.folder).iterdir() if path.is_dir()]
        self.assertEqual(folders, ["tutti-gpu"])


class Running(unittest.TestCase):
    def test_what_does_not_end_is_ended_with_all_that_it_has_started(self):
        run.adopt()
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder, "log")
            # Its child is in a session of its own, where a signal to the group does not reach it.
            hang = ["sh", "-c", "trap '' TERM; setsid sleep 1000 & echo $!; sleep 1001"]
            begin = time.monotonic()
            status, remark = run.run(hang, dict(os.environ), 0.3, log, 2.0)
            self.assertLess(time.monotonic() - begin, 20)
            self.assertEqual((status, remark), (None, ""))
            self.assertFalse(Path("/proc", log.read_text().strip()).exists())
            self.assertEqual(run.children(), [])

    def test_status_and_log(self):
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder, "log")
            command = ["sh", "-c", "echo out; echo err >&2; exit 5"]
            self.assertEqual(run.run(command, dict(os.environ), 20, log, 1), (5, ""))
            self.assertEqual(log.read_text(), "out\nerr\n")
            log.write_bytes(b"x" * run.MOST_LOG + b"end\n")
            run.shorten(log)
            self.assertEqual(log.stat().st_size, run.MOST_LOG)
            self.assertTrue(log.read_text().endswith("xend\n"))


if __name__ == "__main__":
    unittest.main(argv=["running_test.py", "--verbose"])
