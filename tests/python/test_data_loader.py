"""The loader: the same batches however many workers make them, in shared memory, resumed."""

import collections
import gc
import os
import pathlib
import random
import re

import numpy
import pytest

import launching
import tutti
from tutti import data

Pair = collections.namedtuple("Pair", "left right")


class Numbers:
    """Samples of every kind, with noise."""

    def __len__(self):
        return 53

    def __getitem__(self, index):
        noise = random.random() + numpy.random.rand()
        return {"image": numpy.full((4, 3), index, numpy.uint8), "noise": noise,
                "pair": Pair(index, [index % 2 == 0, numpy.float16(index)]),
                "name": f"number {index}", "none": numpy.empty((0, 2)),
                "scalar": numpy.array(index)}


def loader_of(workers, dataset=None, batch_size=4, **options):
    dataset = Numbers() if dataset is None else dataset
    return data.DataLoader(dataset, data.RandomSampler(dataset, batch_size, seed=1),
                           num_workers=workers, **options)


def plain(batch):
    """A batch as lists, with the types and shapes of its arrays."""
    if isinstance(batch, numpy.ndarray):
        return (batch.dtype.str, batch.shape, batch.tolist())
    if isinstance(batch, dict):
        return {key: plain(part) for key, part in batch.items()}
    if isinstance(batch, (tuple, list)):
        return type(batch).__name__, [plain(part) for part in batch]
    return batch


def epochs_of(loader, epochs=2):
    return [[plain(batch) for batch in loader] for _ in range(epochs)]


def test_batches_do_not_depend_on_the_workers():
    random.seed(5)
    numpy.random.seed(5)
    expected = epochs_of(loader_of(0))
    drawn = random.random(), numpy.random.rand()
    assert len(expected[0]) == 14 and expected[0] != expected[1]
    image, pair = expected[0][0]["image"], expected[0][0]["pair"]
    assert image[:2] == ("|u1", (4, 4, 3))
    assert pair[0] == "Pair" and [part[0] for part in pair[1]] == ["<i8", "list"]
    assert expected[0][0]["name"][0] == "list" and expected[0][0]["none"][1] == (4, 0, 2)
    for workers in (1, 2, 3):
        random.seed(5)
        numpy.random.seed(5)
        assert epochs_of(loader_of(workers, prefetch=workers)) == expected
        assert (random.random(), numpy.random.rand()) == drawn  # the program's own go on
    assert epochs_of(loader_of(2, seed=7)) != expected
    loader = loader_of(2, start_method="spawn")
    assert epochs_of(loader, 1) == expected[:1]


def in_shared_memory(array):
    """Whether an array lies in a mapping of a worker's memory."""
    address = array.__array_interface__["data"][0]
    with open("/proc/self/maps") as maps:
        for line in maps:
            begin, end = (int(part, 16) for part in line.split()[0].split("-"))
            if begin <= address < end:
                return "memfd:tutti-data" in line
    return False


def test_arrays_come_in_shared_memory_that_is_used_again():
    loader = loader_of(2, batch_size=1)
    places = set()
    for batch in loader:
        assert in_shared_memory(batch["image"]) and in_shared_memory(batch["noise"])
        batch["image"] += 1  # it is the caller's
        places.add(batch["image"].__array_interface__["data"][0])
    assert 1 < len(places) < 30 < len(loader)


def test_batches_may_be_kept():
    expected = epochs_of(loader_of(0, batch_size=2), 1)
    kept = list(loader_of(2, batch_size=2))
    views = [batch["image"][1:] for batch in kept]
    assert [[plain(batch) for batch in kept]] == expected
    del kept
    gc.collect()
    assert [view.tolist() for view in views] == [batch["image"][2][1:] for batch in expected[0]]
    assert sum(map(in_shared_memory, views)) < len(views)  # the later ones are copies
    del views
    gc.collect()
    with open("/proc/self/maps") as maps:
        assert "tutti-data" not in maps.read()


def test_batches_of_changing_size():
    class Growing:
        def __len__(self):
            return 60

        def __getitem__(self, index):
            return numpy.full(1 + (index * 7919) % 3000, index)

    def ragged(samples):
        return {"all": numpy.concatenate(samples), "lengths": [len(sample) for sample in samples]}

    plain_batches = [epochs_of(data.DataLoader(Growing(), data.SequentialSampler(Growing(), 3),
                                               collator=ragged, num_workers=workers), 1)
                     for workers in (0, 2)]
    assert plain_batches[0] == plain_batches[1]


def test_long_messages_hold_nobody_up():
    """Neither side waits for the other to read: indices, and text, of 100 KB and more."""
    class Texts:
        def __len__(self):
            return 100_000

        def __getitem__(self, index):
            return "x" * 20

    loader = loader_of(2, Texts(), 20_000, prefetch=4)
    assert [len(batch) for batch in loader] == [20_000] * 5


def test_arrays_without_elements():
    for batch in data.DataLoader([numpy.empty((0, 2), "f4")] * 3, num_workers=1):
        assert plain(batch) == ("<f4", (1, 0, 2), [[]])
    sizes = [5, 3, 4, 2, 0, 0, 6, 0]  # among others, whose blocks a worker has
    loader = data.DataLoader([numpy.ones(size) for size in sizes], num_workers=1)
    assert [batch.tolist() for batch in loader] == [[[1.0] * size] for size in sizes]


def test_objects_are_the_collators_to_handle():
    dataset = [{1, 2}, {3}]
    made = data.DataLoader(dataset, [[0, 1], [1]], collator=lambda sets: (set.union(*sets), None),
                           num_workers=1)
    assert list(made) == [({1, 2, 3}, None), ({3}, None)]
    assert list(data.DataLoader([1, 2], [[0], [1]], collator=lambda _: None, num_workers=1)) == [
        None, None]


@pytest.mark.parametrize("workers", [0, 2])
def test_resumes_to_the_sample(workers):
    whole = epochs_of(loader_of(0))
    for read in (0, 1, 6, 13, 14):
        loader = loader_of(workers)
        batches = iter(loader)
        for _ in range(read):
            next(batches)
        state = loader.state_dict()
        batches.close()
        assert state["position"] == min(read * 4, 53)
        resumed = loader_of(2 - workers)
        resumed.load_state_dict(state)
        assert epochs_of(resumed) == [whole[0][read:], whole[1]]
    loader = loader_of(workers)
    list(loader)
    resumed = loader_of(workers)
    resumed.load_state_dict(loader.state_dict())
    assert epochs_of(resumed, 1) == whole[1:]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_that_was_left_early_begins_anew(workers):
    expected = epochs_of(loader_of(0), 1)
    loader = loader_of(workers, prefetch=16)  # which is all of it
    for _ in loader:
        break
    assert epochs_of(loader, 1) == expected


@pytest.mark.parametrize("workers", [0, 2])
def test_infinite(workers):
    expected = sum(epochs_of(loader_of(0)), [])
    loader = data.DataLoader(Numbers(), data.Infinite(data.RandomSampler(Numbers(), 4, seed=1)),
                             num_workers=workers)
    batches = iter(loader)
    assert [plain(next(batches)) for _ in range(20)] == expected[:20]
    state = loader.state_dict()
    assert state["epoch"] == 1 and state["position"] == 24
    loader.load_state_dict(state)
    batches = iter(loader)
    assert [plain(next(batches)) for _ in range(8)] == expected[20:]


def test_samplers_of_others():
    for workers in (0, 2):
        loader = data.DataLoader([5, 6, 7], [[0, 2], (1,)], num_workers=workers)
        assert len(loader) == 2
        assert [batch.tolist() for batch in loader] == [[5, 7], [6]]
        with pytest.raises(tutti.InvalidArgument, match="the sampler is a list"):
            loader.state_dict()
        with pytest.raises(tutti.InvalidArgument, match="gives 1, but must give lists"):
            list(data.DataLoader([5, 6, 7], [1, 2], num_workers=workers))
    assert [batch.tolist() for batch in data.DataLoader([5, 6])] == [[5], [6]]


@pytest.mark.parametrize("samples, reason", [
    ([numpy.zeros(2), numpy.zeros(3)], r"sample 1 .* type and shape float64 \[3\], the first"),
    ([numpy.zeros(2), numpy.zeros(2, "f4")], r"sample 1 .* float32 \[2\]"),
    ([1, 2.0], "sample 1 .* type"),
    ([{"a": 1}, {"b": 1}], "sample 1 .* keys"),
    ([(1, 2), (1,)], "sample 1 .* length"),
    ([None, None], "type NoneType need a collator"),
    ([2**70, 1], "type int need a collator"),
])
def test_samples_that_are_not_alike(samples, reason):
    with pytest.raises(tutti.InvalidArgument, match=reason):
        list(data.DataLoader(samples, [[0, 1]]))
    with pytest.raises(tutti.WorkerError, match=reason) as error:
        list(data.DataLoader(samples, [[0, 1]], num_workers=1))
    assert isinstance(error.value.__cause__, tutti.InvalidArgument)


@pytest.mark.parametrize("arguments, reason", [
    (dict(num_workers=-1), "num_workers is -1"),
    (dict(timeout=0), "timeout is 0"),
    (dict(timeout=float("nan")), "timeout is nan"),
    (dict(prefetch=0), "prefetch is 0"),
    (dict(prefetch=17), "prefetch is 17"),
    (dict(start_method="forkserver"), "start_method is 'forkserver'"),
    (dict(seed=-1), "seed is -1"),
    (dict(sampler=data.RandomSampler(range(3), None)), "batch_size is None"),
])
def test_refuses(arguments, reason, monkeypatch):
    with pytest.raises(tutti.InvalidArgument, match=reason):
        data.DataLoader([1, 2, 3], **arguments)
    monkeypatch.setenv("TUTTI_TIMEOUT", "never")
    with pytest.raises(tutti.InvalidArgument, match="TUTTI_TIMEOUT is 'never'"):
        data.DataLoader([1, 2, 3])


class Squares:
    """Samples by their index, of which nobody knows how many there are."""

    def __getitem__(self, index):
        return index * index


@pytest.mark.parametrize("workers", [0, 1])
def test_a_dataset_without_a_length_wants_a_sampler(workers):
    loader = data.DataLoader(Squares(), [[3, 1], [4]], num_workers=workers)
    assert [batch.tolist() for batch in loader] == [[9, 1], [16]]
    with pytest.raises(TypeError, match="dataset is .*, but must have a length"):
        data.DataLoader(Squares(), num_workers=workers)
    with pytest.raises(TypeError, match="dataset is 5, but must give samples by their index"):
        data.DataLoader(5, [[1]], num_workers=workers)


def test_array_datasets():
    x, y = numpy.arange(12).reshape(4, 3), numpy.arange(4)
    dataset = data.ArrayDataset(x, y)
    assert len(dataset) == 4 and dataset[2][1] == 2
    assert numpy.shares_memory(dataset[2][0], x)
    assert data.ArrayDataset(x)[1].tolist() == [3, 4, 5]
    for arrays in ((), (x, y[1:])):
        with pytest.raises(tutti.InvalidArgument, match="lengths"):
            data.ArrayDataset(*arrays)


def test_tensors_of_torch_become_arrays():
    torch = pytest.importorskip("torch")
    for workers in (0, 1):
        (batch,) = data.DataLoader([torch.ones(2), torch.zeros(2)], [[0, 1]], num_workers=workers)
        assert batch.dtype == numpy.float32 and batch.tolist() == [[1, 1], [0, 0]]

    def drawing(_):
        return float(torch.rand(()))

    torch.manual_seed(0)
    expected = epochs_of(loader_of(0, transform=drawing))
    assert epochs_of(loader_of(2, transform=drawing)) == expected
    drawn = torch.rand(())
    torch.manual_seed(0)
    assert torch.rand(()) == drawn


def sharing(place, pretended):
    if pretended and "OMPI_COMM_WORLD_RANK" in os.environ:
        os.environ["TUTTI_HOST_ID"] = str(int(os.environ["OMPI_COMM_WORLD_RANK"]) // 2)
    comm = place.communicator()
    loaded = []

    def load():
        loaded.append(comm.global_rank)
        return numpy.arange(35.0).reshape(7, 5), numpy.arange(7, dtype=numpy.uint8)

    dataset = data.SharedDataset(load, comm)
    comm.barrier()
    assert bool(loaded) == (comm.local_rank == 0)
    x, y = dataset[6]
    assert len(dataset) == 7 and x.tolist() == [30, 31, 32, 33, 34] and y == 6
    assert x.dtype == numpy.float64 and y.dtype == numpy.uint8
    with pytest.raises(ValueError, match="read-only"):
        dataset.arrays[0][0] = 1
    with open("/proc/self/maps") as maps:
        (inode,) = {line.split()[4] for line in maps if "tutti-data" in line}
    comm.close()
    sampler = data.SequentialSampler(dataset, world_size=1, rank=0)
    return [batch[1].tolist() for batch in data.DataLoader(dataset, sampler, num_workers=1)], inode


def test_shared_dataset():
    results = launching.run(sharing, 3, "fork", False)
    assert all(numbers == [[n] for n in range(7)] for numbers, _ in results)
    assert len({inode for _, inode in results}) == 1


def test_shared_memory_is_found_among_what_other_descriptors_are():
    """Those of ranks of other hosts: their numbers may be anything here."""
    token = b"0123456789abcdef"
    reading, writing = os.pipe()
    folder = os.open("/", os.O_RDONLY)
    memory = data.shared._written([numpy.ones(3)], token)
    before = len(os.listdir("/proc/self/fd"))
    found = data.shared._found([(os.getpid(), one, token)
                                for one in (reading, writing, folder, memory)])
    assert len(os.listdir("/proc/self/fd")) == before + 1
    assert os.pread(found, len(token), 0) == token
    for one in (reading, writing, folder, memory, found):
        os.close(one)


def test_shared_dataset_on_several_hosts():
    launching.run(sharing, 3, "mpi", True)


def failing_to_share(place):
    comm = place.communicator()

    def load():
        raise FileNotFoundError("no such data")

    wanted = FileNotFoundError if comm.local_rank == 0 else tutti.Error
    with pytest.raises(wanted, match="no such data") as error:
        data.SharedDataset(load, comm)
    if comm.local_rank:
        assert re.match("rank 0 could not share its dataset: FileNotFound", str(error.value))
    with pytest.raises(tutti.Error, match="array 0 of load.. is of object"):
        data.SharedDataset(lambda: numpy.array([None]), comm)
    comm.barrier()


def test_shared_dataset_that_cannot_be_loaded():
    launching.run(failing_to_share, 3, "fork")


def documents(place, path):
    text = (pathlib.Path(__file__).parents[2] / "docs" / "data.md").read_text()
    trained = []
    names = dict(tutti=tutti, comm=place.communicator(), path=path,
                 images=numpy.zeros((100, 28, 28), numpy.uint8), labels=numpy.arange(100),
                 normalise=lambda sample: (sample[0] / numpy.float32(255), sample[1]),
                 train=lambda x, y: trained.append((x.dtype, y.tolist())),
                 model={"weight": numpy.full(3, float(place.rank))})
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(block, "docs/data.md", "exec"), names)
    assert len(trained) == 4 and trained[0][0] == numpy.float32
    assert (names["model"]["weight"] == 0).all()
    return sum((y for _, y in trained[:2]), [])


def test_the_documents_examples_run(tmp_path):
    read = launching.run(documents, 2, "fork", str(tmp_path / "model"))
    assert sorted(sum(read, [])) == list(range(100))
