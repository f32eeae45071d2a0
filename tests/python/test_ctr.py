"""The example of click-through rates: its parts, and short runs in all modes."""

import gzip
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import numpy
import pytest

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "ctr"
sys.path.insert(0, str(EXAMPLE))

import alone
import checkpoint
import made_up
from auc import auc
from criteo import ClicksFile, count_lines
from examples import batches_of
from model import MLP, WideAndDeep, logistic_loss
from options import MODES, alone_rounds_of, parse_options

from tutti import ps

TUTTI = [sys.executable, "-m", "tutti.run"]
SMALL = ("--examples", 6000, "--held-out", 3000, "--batch-size", 100, "--epochs", 2, "--dim", 5,
         "--hidden", "12,7")


def same(a, b):
    return all(numpy.array_equal(getattr(a, field), getattr(b, field))
               for field in ("labels", "numbers", "ids"))


# ------------------------------------------------------------------------------------------- parts


def test_auc_counts_pairs():
    random = numpy.random.default_rng(0)
    labels, scores = random.integers(0, 2, 101), random.integers(0, 20, 101)
    pairs = [(a > b) + 0.5 * (a == b) for a in scores[labels == 1] for b in scores[labels == 0]]
    assert auc(labels, scores) == pytest.approx(numpy.mean(pairs), abs=1e-12)
    assert numpy.isnan(auc(numpy.ones(3), numpy.ones(3)))


def test_gradients_are_those_of_the_loss():
    random = numpy.random.default_rng(1)
    model = WideAndDeep(fields=3, numbers=4, dim=2, hidden=[5, 3], seed=1)
    for value in model.parameters.values():
        value[...] = random.normal(size=value.shape)
    wide, deep, numbers = (random.normal(size=shape).astype(numpy.float32)
                           for shape in ((6, 3), (6, 3, 2), (6, 4)))
    labels = random.integers(0, 2, 6).astype(numpy.float32)
    found = model.gradients(wide, deep, numbers, labels, scale=0.5)
    assert set(found.parameters) == set(model.parameters)

    def loss():
        return logistic_loss(model.forward(wide, deep, numbers).astype(float), labels)

    assert found.loss == pytest.approx(loss(), rel=1e-5)
    pairs = [(wide, found.wide), (deep, found.deep)]
    pairs += [(model.parameters[name], found.parameters[name]) for name in model.parameters]
    for value, gradient in pairs:
        assert value.shape == gradient.shape
        for at in numpy.ndindex(value.shape):
            before, losses = value[at], []
            for step in (-1e-2, 1e-2):
                value[at] = before + step
                losses.append(loss())
            value[at] = before
            assert gradient[at] == pytest.approx(0.5 * (losses[1] - losses[0]) / 2e-2, abs=1e-3)


def test_inputs_count_as_side_by_side():
    net = MLP([2, 3], [4, 1], numpy.random.default_rng(0))
    a, b = numpy.ones((5, 2), numpy.float32), numpy.full((5, 3), 2, numpy.float32)
    first = numpy.concatenate([net.parameters["deep.0.0"], net.parameters["deep.0.1"]])
    hidden = numpy.maximum(numpy.concatenate([a, b], axis=1) @ first, 0)
    assert numpy.allclose(net.forward(a, b), hidden @ net.parameters["deep.1.0"], atol=1e-6)


def test_made_up_clicks_are_a_function_of_seed_and_place():
    source = made_up.MadeUpClicks(3)
    whole = source.read(0, 1500)
    assert same(made_up.MadeUpClicks(3).read(0, 1500), whole)
    for first, count in ((0, 1), (511, 2), (100, 1030), (512, 512), (1499, 1)):
        part = source.read(first, count)
        assert numpy.array_equal(part.ids, whole.ids[first : first + count])
        assert numpy.array_equal(part.numbers, whole.numbers[first : first + count])
    assert not numpy.array_equal(made_up.MadeUpClicks(4).read(0, 10).ids, whole.ids[:10])
    fields = whole.ids >> 33
    assert numpy.array_equal(fields, numpy.broadcast_to(numpy.arange(26), fields.shape))
    assert 0.1 < whole.labels.mean() < 0.5
    assert 0.8 < made_up.best_auc(3, blocks=20) < 0.95


def test_workers_share_the_stream():
    class Places:
        def read(self, first, count):
            return list(range(first, first + count))

    parts = [list(batches_of(Places(), 7, 3, 2, worker, 2, 2)) for worker in (0, 1)]
    alone_in_it = list(batches_of(Places(), 7, 3, 2, 0, 1, 4))
    in_turns = [batch for number in range(3) for part in parts
                for batch in part[2 * number : 2 * number + 2]]
    assert in_turns == alone_in_it
    assert sum(in_turns, []) == list(range(7, 7 + 24))


@pytest.mark.parametrize("name", ["clicks.txt", "clicks.txt.gz"])
def test_criteos_format(tmp_path, name):
    with open(tmp_path / "plain", "w") as file:
        made_up.write(5, 700, file)
    data = (tmp_path / "plain").read_bytes()
    path = tmp_path / name
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    assert count_lines(path) == 700
    source = ClicksFile(path)
    for first, count in ((0, 600), (600, 100), (50, 9)):  # back to the beginning
        assert same(source.read(first, count), made_up.MadeUpClicks(5).read(first, count))
    with pytest.raises(ValueError, match=r"clicks.txt.*: ends after 700 lines"):
        source.read(650, 51)
    source.close()


@pytest.mark.parametrize("column, text, message", [
    (0, "2", "a label is neither 0 nor 1"),
    (0, "", "invalid literal"),
    (3, "1.5", "invalid literal"),
    (20, "xyz", "invalid literal"),
    (20, "123456789", "more than eight digits"),
    (39, "ab\tcd", "41 columns instead of 40"),
])
def test_a_wrong_line_is_named(tmp_path, column, text, message):
    good = ["1", *map(str, range(13)), *["68fd1e64"] * 26]
    wrong = [*good[:column], text, *good[column + 1 :]]
    path = tmp_path / "clicks"
    path.write_text("\n".join("\t".join(line) for line in (good, good, wrong, good)) + "\n")
    with pytest.raises(ValueError, match=f"clicks:3: .*{message}"):
        ClicksFile(path).read(0, 4)


def test_a_table_of_one_process():
    table = alone.Table(2, alone.Adagrad(lr=1.0), 0.0, 0.0, seed=0)
    ids = numpy.array([[5, -1], [5, 2**40]])
    table.push(ids, numpy.ones((2, 2, 2), numpy.float32))
    table.step()  # of 5 twice: g = 2, v = 4
    assert numpy.array_equal(table.lookup(ids)[:, :, 0], [[-1, -1], [-1, -1]])
    assert table.lookup(numpy.array([7]))[0, 0] == 0


def test_the_newest_checkpoint_stays(tmp_path):
    class Fleet:
        def save(self, folder):
            pathlib.Path(folder).mkdir()

    with pytest.raises(FileNotFoundError):
        checkpoint.last(tmp_path)
    for epochs_done in (8, 9, 10):
        checkpoint.save(tmp_path / "kept", epochs_done, Fleet())
        assert checkpoint.last(tmp_path / "kept") == epochs_done
    assert os.listdir(tmp_path / "kept") == ["epoch-10"]


# -------------------------------------------------------------------------------------------- runs


def run(*words, launcher=()):
    return subprocess.run([*launcher, sys.executable, EXAMPLE / "ctr_dist.py", *map(str, words)],
                          capture_output=True, text=True, timeout=120)


class Trainings:
    """Runs the example in a folder."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, *words, ranks=(), options=SMALL):
        """The epochs' JSON objects, without what differs from run to run."""
        output = self.folder / "run.json"
        launcher = [*TUTTI, *map(str, ranks), "--log_dir", str(self.folder / "logs")] if ranks else []
        done = run(*options, "--json", output, *words, launcher=launcher)
        assert done.returncode == 0, done.stderr
        epochs = [json.loads(line) for line in output.read_text().splitlines()]
        for epoch in epochs:
            assert epoch.pop("seconds") > 0 and epoch.pop("examples_per_second") > 0
        return epochs

    def checkpoint(self, name):
        """The parts of one, by the names of their servers. What else there is names the job."""
        root = self.folder / name
        return {path.name: path.read_bytes() for path in root.rglob("server-*")}


@pytest.fixture
def train(tmp_path):
    return Trainings(tmp_path)


ROLES = ("--server_num", 1, "--worker_num", 2)


@pytest.mark.parametrize("mode", ["async", "half-async", "geo"])
@pytest.mark.parametrize("ranks", [ROLES, ()], ids=["roles", "alone"])
def test_modes(train, mode, ranks):
    alone = 0 if mode == "geo" else 30  # worker 0's steps, while a second worker waits
    epochs = train("--mode", mode, "--alone", alone, ranks=ranks)
    assert [epoch["epoch"] for epoch in epochs] == [0, 1]
    assert {epoch["workers"] for epoch in epochs} == {2 if ranks else 1}
    assert epochs[-1]["auc"] > 0.55
    assert epochs[-1]["steps"] == (60 + alone // 2 if ranks else 120)


def test_sync_is_one_process_with_a_larger_batch(train):
    """The same bits: of the tables, of the dense parameters, and so of what is evaluated."""
    two = train("--mode", "sync", "--save", train.folder / "two", ranks=ROLES)
    one = train("--mode", "sync", "--servers", 1, "--accumulate", 2, "--save", train.folder / "one",
                ranks=("-n", 2))
    assert [epoch["workers"] for epoch in two + one] == [2, 2, 1, 1]
    for a, b in zip(two, one):
        assert (a["auc"], a["eval_loss"]) == (b["auc"], b["eval_loss"])
    assert two[0]["auc"] != two[1]["auc"] > 0.55
    files = train.checkpoint("two")
    assert files and files == train.checkpoint("one")


def test_resumes_to_the_same_bits_on_other_servers(train):
    whole = train("--mode", "sync", ranks=ROLES)
    train("--mode", "sync", "--epochs", 1, "--save", train.folder / "half", ranks=ROLES)
    shutil.copytree(train.folder / "half", train.folder / "copy")
    rest = train("--mode", "sync", "--resume", train.folder / "copy", "--servers", "thread",
                 ranks=("-n", 2))
    assert [epoch["epoch"] for epoch in rest] == [1]
    assert (rest[0]["auc"], rest[0]["eval_loss"]) == (whole[1]["auc"], whole[1]["eval_loss"])


@pytest.mark.parametrize("workers", [1, 2])
def test_the_other_modes_learn_as_much_as_sync(train, workers):
    """AUC after the same examples: with half of them it is 1.7 points less."""
    def learned(mode):
        return train("--mode", mode, "--examples", 50_000, "--epochs", 1,
                     ranks=("--server_num", 1, "--worker_num", workers))[-1]["auc"]

    sync = learned("sync")
    assert sync > 0.75
    others = {mode: learned(mode) for mode in ("async", "half-async", "geo")}
    assert all(found > sync - 0.005 for found in others.values()), (sync, others)


def test_modes_are_given_their_options():
    options = parse_options(["--staleness", "3", "--queue", "7"])
    assert MODES["async"](options) == ps.Async(7, 7, staleness=3)
    assert MODES["async"](parse_options([])) == ps.Async(1, 1)
    assert MODES["geo"](parse_options(["--mode", "geo", "--push-steps", "7"])) == ps.Geo(7)
    assert MODES["geo"](parse_options(["--mode", "geo"])) == ps.Geo(10)


@pytest.mark.parametrize("option, own", [("--staleness", "async"), ("--queue", "async"),
                                         ("--push-steps", "geo")])
def test_options_of_a_mode_are_refused_in_others(option, own, capsys):
    assert parse_options(["--mode", own, option, "3"]).mode == own
    for mode in MODES:
        if mode != own:
            with pytest.raises(SystemExit):
                parse_options(["--mode", mode, option, "3"])
            assert f"{option}: it is for the mode {own}, not for {mode}" in capsys.readouterr().err


def test_trains_with_bounded_staleness(train):
    epochs = train("--mode", "async", "--staleness", 4, ranks=ROLES)
    assert [epoch["workers"] for epoch in epochs] == [2, 2]
    assert epochs[-1]["steps"] == 60  # each worker's own: worker 0 makes none alone
    assert epochs[-1]["auc"] > 0.55


@pytest.mark.parametrize("words, rounds, workers, expected", [
    ((), 1000, 2, 100),
    ((), 1000, 3, 67),
    ((), 244, 2, 61),  # of which a quarter is less
    ((), 3, 2, 0),
    (("--mode", "half-async"), 1000, 1, 200),
    (("--alone", "30"), 20, 2, 15),  # as told
    (("--alone", "30"), 7, 2, 7),
    (("--alone", "0", "--staleness", "4"), 1000, 2, 0),
    (("--staleness", "4"), 1000, 2, 0),
    (("--mode", "sync"), 1000, 2, 0),
    (("--mode", "geo"), 1000, 2, 0),
    (("--mode", "local"), 1000, 1, 0),
])
def test_what_is_worker_0_s_alone(words, rounds, workers, expected):
    assert alone_rounds_of(parse_options(list(words)), rounds, workers) == expected


def test_local_is_for_one_process(tmp_path):
    done = run("--mode", "local", launcher=[*TUTTI, "-n", "2", "--log_dir", str(tmp_path)])
    assert done.returncode == 1
    assert "--mode local: it is for one process, but tutti run has started 2" in done.stderr


def test_reads_a_file(train):
    path = train.folder / "clicks.txt"
    with open(path, "w") as file:
        made_up.write(0, 9000, file)
    expected = train("--mode", "sync", "--epochs", 1, ranks=ROLES)
    found = train("--mode", "sync", "--epochs", 1, "--data", path, ranks=ROLES)
    assert found == expected


@pytest.mark.parametrize("mode, said", [
    ("local", ""), ("async", r"Worker 0 makes the first 15 steps alone \(--alone\)\n"),
])
def test_says_what_it_does(mode, said):
    done = run(*SMALL, "--epochs", 1, "--mode", mode)
    number = r"\d+\.\d{6}"
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(
        rf"Starting Epoch 0:\n{said}Training loss = {number}, \d+ examples/s\n"
        rf"Evaluation AUC = {number}, loss = {number}, Elapsed Time = {number}s\n", done.stdout)


@pytest.mark.parametrize("words, message", [
    (("--data", "nowhere"), "No such file or directory: 'nowhere'"),
    (("--resume", "."), ".: holds no checkpoint"),
    (("--examples", 7), "--examples: 7 are not a batch for each worker"),
    (("--mode", "local", "--save", "x"), "--save: --mode local has no servers"),
    (("--staleness", 4, "--alone", 5), "--alone, --staleness: by the steps that worker 0 makes alone"),
    (("--mode", "sync", "--alone", 5), "--alone: it is for the modes async and half-async, not for sync"),
    (("--mode", "geo", "--alone", 5), "--alone: it is for the modes async and half-async, not for geo"),
])
def test_refuses(words, message):
    done = run("--batch-size", 8, *words)
    assert done.returncode != 0 and message in done.stderr
    assert "Traceback" not in done.stderr
