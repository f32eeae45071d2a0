"""Samplers: what each rank reads, counted over all ranks, and resumed to the sample."""

import collections
import json
import subprocess
import sys

import numpy
import pytest

import launching
import tutti
from tutti import data, distributed

LENGTHS = (1, 2, 5, 7, 31, 97, 128)
KINDS = {"sequential": data.SequentialSampler, "random": data.RandomSampler}


def made(kind, length, ranks, rank, **options):
    return KINDS[kind](range(length), world_size=ranks, rank=rank, **options)


def flat(batches):
    return [index for batch in batches for index in batch]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
def test_every_sample_comes_once_over_the_ranks(kind, ranks):
    for length in LENGTHS:
        for pad in ("wrap", "drop", "none"):
            if pad == "drop" and length < ranks:
                continue  # refused, as is tested below
            samplers = [made(kind, length, ranks, rank, batch_size=3, pad=pad)
                        for rank in range(ranks)]
            for epoch in range(3):
                batches = [list(sampler) for sampler in samplers]
                assert [len(of_rank) for of_rank in batches] == [len(s) for s in samplers]
                counts = collections.Counter(flat(map(flat, batches)))
                if pad == "wrap":  # those of the front again, as few as there can be
                    again = -length % ranks
                    assert set(counts) == set(range(length))
                    assert sum(counts.values()) == length + again
                    assert max(counts.values()) - min(counts.values()) <= 1
                elif pad == "drop":
                    assert set(counts.values()) == {1}
                    assert len(counts) == length // ranks * ranks
                else:
                    assert counts == dict.fromkeys(range(length), 1)
                shares = {len(flat(of_rank)) for of_rank in batches}
                assert len(shares) == 1 or pad == "none" and max(shares) - min(shares) == 1
                assert all(sampler.epoch == epoch + 1 for sampler in samplers)


def test_what_is_read_is_a_function_of_seed_and_epoch():
    one = data.RandomSampler(range(50), 7, seed=4)
    epochs = [list(one) for _ in range(3)]
    assert epochs[0] != epochs[1] != epochs[2]
    other = data.RandomSampler(range(50), 7, seed=4)
    other.epoch = 2
    assert list(other) == epochs[2]
    other.set_epoch(0)
    assert list(other) == epochs[0]
    assert list(data.RandomSampler(range(50), 7, seed=5)) != epochs[0]
    # On any NumPy.
    assert list(data.RandomSampler(range(5), 5, seed=2**40 + 7)) == [[2, 4, 1, 0, 3]]


def test_an_epoch_that_was_left_early_begins_anew():
    sampler = data.RandomSampler(range(20), 3)
    first = next(iter(sampler))
    assert list(sampler)[0] == first and sampler.epoch == 1


def test_batches():
    assert list(data.SequentialSampler(range(7), 3)) == [[0, 1, 2], [3, 4, 5], [6]]
    assert list(data.SequentialSampler(range(7), 3, True)) == [[0, 1, 2], [3, 4, 5]]
    assert list(data.SequentialSampler(range(3))) == [[0], [1], [2]]
    assert list(data.SequentialSampler(range(3), None)) == [0, 1, 2]
    assert list(data.SequentialSampler(range(9), 2, indices=[8, 1, 5])) == [[8, 1], [5]]
    assert set(flat(data.RandomSampler(range(9), 2, indices=[8, 1, 5]))) == {1, 5, 8}
    assert len(data.RandomSampler(range(7), 3)) == 3
    assert len(data.RandomSampler(range(7), 3, drop_last=True)) == 2
    assert len(data.RandomSampler(range(7), None, world_size=2, rank=0)) == 4


@pytest.mark.parametrize("pad", ["wrap", "drop", "none"])
@pytest.mark.parametrize("kind", KINDS)
def test_resumes_to_the_sample(kind, pad):
    for ranks in (1, 2, 5):
        whole = [list(made(kind, 23, ranks, rank, batch_size=2, pad=pad)) for rank in range(ranks)]
        for read in range(len(whole[0]) + 1):
            states = []
            for rank in range(ranks):
                sampler = made(kind, 23, ranks, rank, batch_size=2, pad=pad)
                batches = iter(sampler)
                for _ in range(min(read, len(whole[rank]))):
                    next(batches)
                states.append(sampler.state_dict())
                resumed = made(kind, 23, ranks, rank, batch_size=2, pad=pad)
                resumed.load_state_dict(json.loads(json.dumps(states[-1])))
                assert list(resumed) == whole[rank][read:]
                assert resumed.epoch == 1 and len(list(resumed)) == len(whole[rank])
            if read < len(whole[0]):
                assert all(state == states[0] for state in states)
    

@pytest.mark.parametrize("before, after", [(1, 3), (3, 2), (2, 5), (4, 1)])
def test_resumes_on_another_number_of_ranks(before, after):
    """What is left comes once."""
    for read in range(5):
        seen, state = [], None
        for rank in range(before):
            sampler = made("random", 60, before, rank, batch_size=2, seed=1)
            batches = iter(sampler)
            for _ in range(read):
                seen += next(batches)
            state = sampler.state_dict()
        for rank in range(after):
            sampler = made("random", 60, after, rank, batch_size=2, pad="none")
            sampler.load_state_dict(state)
            seen += flat(sampler)
        assert sorted(seen) == list(range(60))


def test_a_state_says_how_much_was_used_where_more_was_read():
    sampler = data.RandomSampler(range(40), 4, world_size=2, rank=1)
    whole = list(sampler)
    sampler.epoch = 0
    batches = iter(sampler)
    for _ in range(4):
        next(batches)  # of which somebody has used two
    resumed = data.RandomSampler(range(40), 4, world_size=2, rank=1)
    resumed.load_state_dict(sampler.state_dict(used=8))
    assert list(resumed) == whole[2:]


def test_replacement():
    sampler = data.ReplacementSampler(range(4), 100, num_samples=4000, weights=[1, 0, 3, 4],
                                      seed=1, world_size=2, rank=0)
    drawn = collections.Counter(flat(sampler))
    assert sum(drawn.values()) == 2000 and drawn[1] == 0
    assert abs(drawn[0] - 250) < 75 and abs(drawn[3] - 1000) < 120
    assert flat(data.ReplacementSampler(range(9), 4)) != list(range(9))
    both = [flat(data.ReplacementSampler(range(10**6), 4, num_samples=50, world_size=2, rank=rank))
            for rank in (0, 1)]
    assert not set(both[0]) & set(both[1])  # each has draws of its own


def test_infinite():
    sampler = data.Infinite(data.RandomSampler(range(10), 4, seed=3))
    plain = data.RandomSampler(range(10), 4, seed=3)
    expected = [batch for _ in range(4) for batch in plain]
    batches = iter(sampler)
    assert [next(batches) for _ in range(12)] == expected
    assert len(sampler) > 10**18 and sampler.epoch == 3
    resumed = data.Infinite(data.RandomSampler(range(10), 4, seed=3))
    sampler.epoch = 1
    batches = iter(sampler)
    assert [next(batches) for _ in range(2)] == expected[3:5]
    resumed.load_state_dict(sampler.state_dict())
    batches = iter(resumed)
    assert [next(batches) for _ in range(7)] == expected[5:12]


class Backwards(data.MapSampler):
    """One of a user's own."""

    def sample(self, epoch):
        return numpy.arange(self.num_samples)[::-1] - epoch


def test_samplers_of_ones_own():
    sampler = Backwards(range(10), 3, num_samples=7, world_size=2, rank=1)
    assert list(sampler) == [[5, 3, 1], [6]] and len(sampler) == 2
    assert list(sampler) == [[4, 2, 0], [5]]


@pytest.mark.parametrize("arguments, reason", [
    (dict(dataset=[]), "dataset has no samples"),
    (dict(batch_size=0), "batch_size is 0"),
    (dict(drop_last=1), "drop_last is 1"),
    (dict(pad="join"), "pad is 'join'"),
    (dict(world_size=2), "rank is missing"),
    (dict(rank=0), "world_size is missing"),
    (dict(world_size=2, rank=2), "rank is 2, but the ranks are 0 to 1"),
    (dict(world_size=2, rank=-1), "rank is -1"),
    (dict(seed=-1), "seed is -1"),
    (dict(seed=2**63), "seed is 9223372036854775808"),
    (dict(batch_size=11, drop_last=True), "no batch of 10 samples"),
    (dict(world_size=11, rank=3, pad="drop"), "no batch of 10 samples"),
    (dict(indices=[3, 10]), "indices reaches from 3 to 10"),
    (dict(indices=[-1]), "indices reaches from -1"),
    (dict(indices=[]), "indices is"),
    (dict(indices=[0.5]), "indices is"),
])
def test_refuses(arguments, reason):
    with pytest.raises(tutti.InvalidArgument, match=reason):
        data.RandomSampler(**{"dataset": range(10), **arguments})


@pytest.mark.parametrize("name", ["batch_size", "num_samples", "seed"])
@pytest.mark.parametrize("value", [True, numpy.True_, 2.5, numpy.array(2.5), "2"])
def test_refuses_other_kinds(name, value):
    with pytest.raises(TypeError, match=f"{name} is .*, but must be a whole number"):
        data.ReplacementSampler(range(10), **{name: value})


def test_refuses_weights_and_states():
    for weights, reason in {(1, 2): "shape", (1, -1, 1): "finite", (0, 0, 0): "not all of them 0",
                            (1, float("nan"), 1): "finite"}.items():
        with pytest.raises(tutti.InvalidArgument, match=reason):
            data.ReplacementSampler(range(3), weights=weights)
    sampler = data.RandomSampler(range(10), seed=5)
    good = sampler.state_dict()
    for wrong in (dict(num_samples=11), dict(sampler="SequentialSampler"), dict(epoch=-1),
                  dict(position=None), dict(seed="5"), dict(indices=1)):
        with pytest.raises(tutti.InvalidArgument, match=next(iter(wrong))):
            sampler.load_state_dict({**good, **wrong})
        with pytest.raises(tutti.InvalidArgument):
            sampler.load_state_dict({})
    assert sampler.state_dict() == good


def test_a_process_that_nobody_started_is_alone():
    sampler = data.RandomSampler(range(10))
    assert (sampler.world_size, sampler.rank) == (1, 0)


def reading(*_):
    """One epoch, by a loader that was told nothing of ranks."""
    dataset = range(101)
    loader = data.DataLoader(dataset, data.RandomSampler(dataset, 8, pad="none"), num_workers=1)
    return [number for batch in loader for number in batch.tolist()]


@pytest.mark.parametrize("ranks", [2, 5])
def test_the_ranks_of_a_launcher_share_the_samples(ranks):
    read = distributed.launcher(reading, n_gpus=ranks)()
    assert sorted(sum(read, [])) == list(range(101))
    assert {len(of_rank) for of_rank in read} == {101 // ranks, 101 // ranks + 1}


def test_the_ranks_of_mpiexec_share_the_samples():
    assert sorted(sum(launching.run(reading, 2, "mpi"), [])) == list(range(101))


class Squares:
    def __getitem__(self, index):
        return numpy.float32(index * index)

    def __len__(self):
        return 50


@pytest.mark.parametrize("workers", [0, 2])
def test_pytorchs_loader_takes_them(workers):
    loading = pytest.importorskip("torch.utils.data")
    whole = list(data.RandomSampler(Squares(), 8, seed=2, world_size=2, rank=1))

    def numbers(loader):
        return [[round(float(x) ** 0.5) for x in batch] for batch in loader]

    sampler = data.RandomSampler(Squares(), 8, seed=2, world_size=2, rank=1)
    loader = loading.DataLoader(Squares(), batch_sampler=sampler, num_workers=workers)
    assert len(loader) == 4 and numbers(loader) == whole
    assert numbers(loader) != whole  # the next epoch
    singles = data.RandomSampler(Squares(), None, seed=2, world_size=2, rank=1)
    loader = loading.DataLoader(Squares(), batch_size=8, sampler=singles, num_workers=workers)
    assert len(loader) == 4 and numbers(loader) == whole
    sampler.load_state_dict({**sampler.state_dict(used=16), "epoch": 0})
    loader = loading.DataLoader(Squares(), batch_sampler=sampler, num_workers=workers)
    assert numbers(loader) == whole[2:]


# Each worker writes what it reads; a server tells why it reads nothing, unless it says what.
READERS = """
import json, os, signal, sys
import tutti
from tutti import data
role, index = os.environ["TUTTI_ROLE"], os.environ["TUTTI_ROLE_INDEX"]
def tell(what):
    with open(f"{role}.{index}.new", "w") as file: json.dump(what, file)
    os.rename(f"{role}.{index}.new", f"{role}.{index}")
if role == "worker":
    tell([index for index in data.SequentialSampler(range(7), batch_size=None)])
else:
    assert len(data.SequentialSampler(range(7), 7, world_size=1, rank=0)) == 1
    try:
        data.SequentialSampler(range(7))
    except tutti.InvalidArgument as error:
        tell(str(error))
    if role == "server": signal.pause()
while not all(os.path.exists(name) for name in sys.argv[1:]): pass
"""


def test_where_there_are_servers_the_workers_alone_read(tmp_path):
    (tmp_path / "script.py").write_text(READERS)
    names = ["worker.0", "worker.1", "heter_worker.0", "server.0"]
    done = subprocess.run(
        [sys.executable, "-m", "tutti.run", "--server_num", "1", "--worker_num", "2",
         "--heter_worker_num", "1", "script.py", *names],
        cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    told = {name: json.loads((tmp_path / name).read_text()) for name in names}
    assert (told["worker.0"], told["worker.1"]) == ([0, 2, 4, 6], [1, 3, 5, 0])
    assert told["server.0"].startswith("TUTTI_ROLE is 'server': only workers read data")
    assert told["heter_worker.0"].startswith("TUTTI_ROLE is 'heter_worker': only workers read")


def test_variables_that_do_not_say_who_reads_are_refused(monkeypatch):
    for name, value in {"TUTTI_RANK": "0", "TUTTI_WORLD_SIZE": "3", "TUTTI_TICKET": "f" * 256,
                        "TUTTI_ROLE": "worker", "TUTTI_ROLE_INDEX": "0"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(tutti.InvalidArgument, match="PADDLE_TRAINERS_NUM, .* are not all numbers"):
        data.SequentialSampler(range(7))
