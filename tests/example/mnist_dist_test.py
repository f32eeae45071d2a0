#!/usr/bin/env python3
"""Runs mnist_dist as its users do: mnist_dist_test.py PROGRAM MPIEXEC [unittest's arguments]."""

import glob
import json
import os
import pathlib
import random
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import zlib

PROGRAM = sys.argv[1]
MPIEXEC = (sys.argv[2], "--oversubscribe", "--bind-to", "none")  # there may be fewer cores
TRAIN, TEST = 300, 101  # neither divides by two or three ranks
PARAMETERS = 431080
NUMBER = r"\d+\.\d{6}"
PHASES = ["pack", "encode", "exchange", "decode", "update", "overlap"]
# Each way of training, and about how many bytes a step hands to collectives for each parameter.
MODES = {
    ("fp32",): 4,
    ("fp16",): 2,
    ("bf16",): 2,
    ("partialUpdate",): 4 / 3,  # on average over three partitions
    ("sparseTopK", "--spars", "0.01"): 0.08,
    ("sparseTopK", "--spars", "0.01", "--momentum-correction", "--clip-norm", "5",
     "--warm-up-epochs", "1"): None,
    ("sparseThreshold", "--spars", "0.02"): None,
}


def write_images(folder, part, count, patterns):
    generator = random.Random(count)
    labels = [generator.randrange(10) for _ in range(count)]
    pixels = b"".join(patterns[label] for label in labels)
    (folder / f"{part}-images-idx3-ubyte").write_bytes(
        struct.pack(">4I", 0x803, count, 28, 28) + pixels)
    (folder / f"{part}-labels-idx1-ubyte").write_bytes(
        struct.pack(">2I", 0x801, count) + bytes(labels))


def children_of(pid):
    """The direct children, in the order in which they were started."""
    found = []
    for path in glob.glob("/proc/[0-9]*/stat"):
        try:
            text = pathlib.Path(path).read_text()
        except OSError:
            continue
        if int(text.rsplit(")", 1)[1].split()[1]) == pid:
            found.append(int(path.split("/")[2]))
    return sorted(found)


def is_running(pid):
    """False for a zombie, too: in a container nobody may reap orphans."""
    try:
        return ") Z " not in pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def wait_until(condition, seconds):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def segments(pid):
    """The files of tutti's shared memory that a process maps, whether they have a name still or
    not: other jobs on this machine have theirs."""
    maps = pathlib.Path(f"/proc/{pid}/maps").read_text()
    return set(re.findall(r"/dev/shm/tutti\S*", maps))


class MnistDist(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        self.data = self.folder / "images"
        self.data.mkdir()
        generator = random.Random(0)
        patterns = [generator.randbytes(784) for _ in range(10)]
        write_images(self.data, "train", TRAIN, patterns)
        write_images(self.data, "t10k", TEST, patterns)
        self.environment = {name: value for name, value in os.environ.items()
                            if name != "TUTTI_MNIST_DIR"}

    def start(self, *arguments, launcher=()):
        return subprocess.Popen([*launcher, PROGRAM, *map(str, arguments)], cwd=self.folder,
                                env=self.environment, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def run_to_end(self, *arguments, launcher=()):
        """Status, stdout, and the program's own lines on stderr."""
        process = self.start(*arguments, launcher=launcher)
        try:
            output, errors = process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return process.returncode, output, [line for line in errors.splitlines()
                                            if line.startswith("mnist_dist: ")]

    def train(self, *arguments, launcher=()):
        """Trains on the small data; the epochs' JSON objects."""
        result = self.folder / "result.json"
        status, _, errors = self.run_to_end("--data-dir", self.data, "--json", result, *arguments,
                                            launcher=launcher)
        self.assertEqual((status, errors), (0, []))
        return [json.loads(line) for line in result.read_text().splitlines()]

    def test_prints_the_lines_of_the_document(self):
        status, output, errors = self.run_to_end("--ranks", 2, "--epochs", 2, "--data-dir",
                                                 self.data)
        self.assertEqual((status, errors), (0, []))
        epoch = (rf"Training loss = {NUMBER}, training accuracy = {NUMBER}\n"
                 rf"Evaluation accuracy = {NUMBER}, Elapsed Time = {NUMBER}s\n")
        self.assertRegex(output, rf"\AStarting Epoch 0:\n{epoch}Starting Epoch 1:\n{epoch}\Z")

    def test_mpi_and_fork_train_alike(self):
        for ranks in (1, 2, 3):
            with self.subTest(ranks=ranks):
                forked = self.train("--ranks", ranks, "--epochs", 6)
                mpi = self.train("--epochs", 6, launcher=(*MPIEXEC, "-n", str(ranks)))
                self.assertEqual([epoch["epoch"] for epoch in mpi], list(range(6)))
                for epoch in forked + mpi:
                    self.assertGreater(epoch.pop("seconds"), 0)
                    self.assertGreater(epoch.pop("images_per_second"), 0)
                    phases = epoch.pop("seconds_by_phase")
                    self.assertEqual(list(phases), PHASES)
                    self.assertGreater(phases["update"], 0)
                    late = epoch.pop("lateness")
                    self.assertEqual(len(late), ranks)
                    self.assertGreaterEqual(min(late), 0)
                    self.assertEqual(max(late) > 0, ranks > 1)
                self.assertEqual(forked, mpi)
                last = mpi[-1]
                self.assertEqual(last["eval_count"], TEST)
                self.assertEqual(last["world_size"], ranks)
                self.assertEqual((last["dist_option"], last["device"], last["data"]),
                                 ("fp32", "cpu", "mnist"))
                self.assertGreaterEqual(last["bytes_per_step"], 4 * PARAMETERS)
                self.assertLess(last["bytes_per_step"], 1.01 * 4 * PARAMETERS)  # padding
                self.assertLess(last["train_loss"], 0.5 * mpi[0]["train_loss"])

    def test_resumes_to_the_same_bits_in_every_mode(self):
        whole, half = self.folder / "whole", self.folder / "half"
        losses = []
        for mode in MODES:
            with self.subTest(mode=mode):
                arguments = ("--ranks", 2, "--dist-option", *mode)
                expected = self.train(*arguments, "--epochs", 3, "--seed", 7, "--save", whole)
                self.train(*arguments, "--epochs", 1, "--seed", 7, "--save", half)
                resumed = self.train(*arguments, "--epochs", 3, "--resume", half, "--save", half)
                self.assertEqual(whole.read_bytes(), half.read_bytes())
                self.assertEqual([epoch["train_loss"] for epoch in resumed],
                                 [epoch["train_loss"] for epoch in expected[1:]])
                losses.append(expected[-1]["train_loss"])
        self.assertEqual(len(set(losses)), len(MODES))  # none is another one in disguise
        other = self.train("--ranks", 2, "--epochs", 1, "--seed", 8)
        self.assertNotEqual(other[0]["train_loss"], expected[0]["train_loss"])

    def test_a_state_of_each_rank_needs_as_many_ranks(self):
        model = self.folder / "model"
        sparse = ("--dist-option", "sparseTopK")
        self.train("--ranks", 2, "--epochs", 1, "--save", model, *sparse)
        status, _, errors = self.run_to_end("--ranks", 3, "--data-dir", self.data, "--resume",
                                            model, *sparse)
        self.assertEqual(status, 1)
        self.assertEqual(errors, [f"mnist_dist: {model}: of 2 ranks, each with a state of its "
                                  "own, and this is a run of 3"])
        self.train("--ranks", 2, "--epochs", 1, "--save", model)
        self.train("--ranks", 3, "--epochs", 2, "--resume", model)  # alike on all ranks

    def test_tells_what_each_mode_sends(self):
        for mode, bytes_per_parameter in MODES.items():
            with self.subTest(mode=mode):
                epochs = self.train("--ranks", 2, "--epochs", 3, "--dist-option", *mode)
                self.assertEqual(epochs[0]["dist_option"], mode[0])
                for epoch in epochs:
                    self.assertEqual(epoch["non_finite"], 0)
                    self.assertGreater(epoch["density"], 0)
                    self.assertLessEqual(epoch["density"], 1)
                if bytes_per_parameter is not None:
                    self.assertLess(epochs[-1]["bytes_per_step"],
                                    1.1 * bytes_per_parameter * PARAMETERS)

    def test_refuses_in_one_line(self):
        (self.folder / "foreign").write_text("not a checkpoint")
        (self.folder / "link").symlink_to("foreign")
        cases = {
            ("--bogus",): "unknown option '--bogus'",
            ("--epochs", "none"): "--epochs: 'none' is not",
            ("--data-dir", "nowhere"): "nowhere: no such folder",
            ("--data-dir", self.folder): "train-images-idx3-ubyte: no such file",
            ("--data-dir", self.data, "--resume", "foreign"): "foreign: not a checkpoint",
            ("--data-dir", self.data, "--resume", "none"): "none: no such file",
            ("--data-dir", self.data, "--json", "none/result"): "none/result: cannot be written",
            ("--data-dir", self.data, "--json", "/dev/null"): "/dev/null: cannot be replaced",
            ("--data-dir", self.data, "--save", "none/model"): "none/model: cannot be written",
            ("--data-dir", self.data, "--save", "/dev/full"): "/dev/full: cannot be replaced",
            ("--data-dir", self.data, "--save", "link"): "link: cannot be replaced",
            ("--data-dir", self.data, "--dist-option", "sparseTopK", "--momentum-correction",
             "--momentum", "1.5"): "sparse.momentum is 1.5",
        }
        for arguments, reason in cases.items():
            self.expect_one_line(reason, *arguments)

    def test_refuses_the_environment_in_one_line(self):
        healthy = self.environment
        for name in ("TUTTI_TIMEOUT", "TUTTI_LOG", "TUTTI_ISA", "TUTTI_SPARSE", "TUTTI_GPU_CHECK",
                     "TUTTI_DEVICE", "TUTTI_BETWEEN_HOSTS"):
            self.environment = {**healthy, name: "bogus"}
            self.expect_one_line(f"{name} is 'bogus'", "--data-dir", self.data)

    def expect_one_line(self, reason, *arguments):
        for launcher, ranks in (((), ("--ranks", 2)), ((*MPIEXEC, "-n", "2"), ())):
            with self.subTest(reason=reason, launcher=launcher):
                status, output, errors = self.run_to_end(*arguments, *ranks, launcher=launcher)
                self.assertNotEqual(status, 0)
                self.assertEqual(len(errors), 1, errors)
                self.assertIn(reason, errors[0])
                self.assertEqual(output, "")

    def test_refuses_a_truncated_file(self):
        path = self.data / "t10k-images-idx3-ubyte"
        path.write_bytes(path.read_bytes()[:-1])
        status, _, errors = self.run_to_end("--ranks", 3, "--data-dir", self.data)
        self.assertEqual(status, 1)
        self.assertEqual(len(errors), 1, errors)
        self.assertRegex(errors[0], f"{path}: truncated")

    def start_saving(self, *arguments):
        process = self.start("--ranks", 2, "--epochs", 1000000, "--data-dir", self.data, "--save",
                             self.model, *arguments)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.kill)
        return process

    def kill_all(self, process):
        ranks = children_of(process.pid)
        process.kill()
        process.wait()
        self.assertTrue(wait_until(lambda: not any(is_running(rank) for rank in ranks), 20))

    def epochs_of_whole_checkpoint(self):
        content = self.model.read_bytes()
        self.assertEqual(struct.unpack("<I", content[-4:])[0], zlib.crc32(content[:-4]))
        names = struct.unpack_from("<Q", content, 12)[0]  # after the magic and the version
        return struct.unpack_from("<Qq", content, 20 + names)[1]

    def test_files_of_others_are_not_written_to(self):
        """Links where the file used to be written first."""
        model = self.folder / "model"
        precious = self.folder / "precious"
        precious.write_text("precious")
        (self.folder / "model.tmp").symlink_to(precious)
        self.train("--ranks", 2, "--epochs", 1, "--save", model)
        self.assertEqual(precious.read_text(), "precious")
        self.assertTrue((self.folder / "model.tmp").is_symlink())

    def test_killed_at_any_moment_it_leaves_a_whole_checkpoint(self):
        self.model = self.folder / "model"
        done = 1
        self.train("--ranks", 2, "--epochs", done, "--save", self.model)
        others = set(os.listdir(self.folder))

        def temporary():
            return list(self.folder.glob(".*.tmp"))

        for _ in range(6):
            process = self.start_saving("--resume", self.model)
            # The second file it begins; what is killed may have left the first.
            before = self.model.stat().st_mtime_ns
            deadline = time.monotonic() + 60
            while self.model.stat().st_mtime_ns == before or not temporary():
                self.assertIsNone(process.poll())
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.0005)
            time.sleep(random.random() * 0.005)
            self.kill_all(process)
            self.assertGreater(self.epochs_of_whole_checkpoint(), done)
            done = self.epochs_of_whole_checkpoint()
            for path in temporary():
                path.unlink()
            self.assertEqual(set(os.listdir(self.folder)), others)
        self.train("--ranks", 2, "--epochs", done + 1, "--resume", self.model, "--save", self.model)
        self.assertEqual(self.epochs_of_whole_checkpoint(), done + 1)
        self.assertEqual(set(os.listdir(self.folder)), others)

    def test_draws_digits_where_there_is_no_data(self):
        process = self.start("--ranks", 2)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        self.assertRegex(process.stdout.readline(), "generated digits, not on MNIST")

    def start_training(self, ranks):
        """A long training that has begun; it and its ranks."""
        process = self.start("--ranks", ranks, "--epochs", 1000000, "--data-dir", self.data)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.kill)
        while not process.stdout.readline().startswith("Evaluation"):
            self.assertIsNone(process.poll())
        return process, children_of(process.pid)

    def test_a_killed_rank_is_named_by_the_others(self):
        for victim in range(3):
            with self.subTest(victim=victim):
                process, ranks = self.start_training(3)
                self.assertEqual(len(ranks), 3)
                mapped = segments(ranks[0])
                self.assertNotEqual(mapped, set())
                os.kill(ranks[victim], signal.SIGKILL)
                _, errors = process.communicate(timeout=30)
                self.assertEqual(process.returncode, 1)
                for rank in {0, 1, 2} - {victim}:
                    self.assertRegex(errors, rf"(?m)^mnist_dist: rank {rank}: .*rank {victim}\b")
                self.assertEqual([path for path in mapped if os.path.exists(path)], [])

    def test_ranks_die_with_their_parent(self):
        process, ranks = self.start_training(2)
        process.kill()
        process.wait()
        self.assertTrue(wait_until(
            lambda: not any(is_running(rank) for rank in ranks), 20))

    def test_a_terminal_gets_a_progress_bar(self):
        leader, follower = os.openpty()
        process = subprocess.Popen([PROGRAM, "--ranks", "2", "--epochs", "1", "--data-dir",
                                    str(self.data)], stdout=follower, stdin=subprocess.DEVNULL)
        os.close(follower)
        output = b""
        try:
            while block := os.read(leader, 4096):
                output += block
        except OSError:  # how a terminal ends
            pass
        os.close(leader)
        self.assertEqual(process.wait(timeout=60), 0)
        self.assertRegex(output, rb"\r\[=* *\] \d+/3  \d+ images/s")
        self.assertIn(b"Evaluation accuracy", output)

    def test_a_launcher_is_told_of_the_progress(self):
        reader, writer = os.pipe()
        command = [PROGRAM, "--ranks", "2", "--epochs", "1", "--data-dir", str(self.data)]
        environment = {**os.environ, "TUTTI_PROGRESS_FD": str(writer)}
        subprocess.run(command, env=environment, pass_fds=[writer], check=True, capture_output=True)
        os.close(writer)
        with open(reader, encoding="utf-8") as told:
            self.assertRegex(told.readline(), r"^1/3, \d+ images/s$")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
