"""Batches as PyTorch tensors, one ahead."""

import collections
import contextlib
import sys

import pytest

from test_data_loader import epochs_of, loader_of
from tutti import data


@pytest.mark.parametrize("workers", [0, 2])
def test_preloader_of_torch(workers):
    torch = pytest.importorskip("torch")
    whole = epochs_of(loader_of(0))
    made = data.Preloader(loader_of(workers), "cpu")
    assert len(made) == 14
    batches = iter(made)
    first = next(batches)
    assert first["image"].dtype == torch.uint8 and first["pair"].left.dtype == torch.int64
    assert first["image"].tolist() == whole[0][0]["image"][2]
    state = made.state_dict()
    assert state["position"] == 4  # not of the one that is ahead
    del batches
    made.load_state_dict(state)
    assert [batch["image"].tolist() for batch in made] == [b["image"][2] for b in whole[0][1:]]
    assert [batch["image"].tolist() for batch in made] == [b["image"][2] for b in whole[1]]
    with pytest.raises(RuntimeError):
        data.Preloader(loader_of(workers), "nowhere")


def test_workers_compute_with_pytorch_as_their_parent_has():
    """Whose threads a fork has not."""
    torch = pytest.importorskip("torch")
    matrix = torch.ones(600, 600)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        expected = float((matrix @ matrix).add(1).sum())
        loader = data.DataLoader([1], [[0]], num_workers=1, timeout=20,
                                 transform=lambda _: float((matrix @ matrix).add(1).sum()))
        assert [float(batch[0]) for batch in loader] == [expected]
    finally:
        torch.set_num_threads(before)


class FakeTorch:
    """PyTorch on a GPU, as far as a Preloader uses it: what is called, in order."""

    def __init__(self):
        self.calls = []
        self.cuda = self
        self.Tensor = FakeTensor

    def device(self, name):
        return collections.namedtuple("Device", "type name")(name.partition(":")[0], name)

    def from_numpy(self, array):
        return FakeTensor(self, array)

    def Stream(self, device):  # noqa: N802 - PyTorch's name
        return FakeStream(self, "own")

    def current_stream(self, device):
        return FakeStream(self, "current")

    @contextlib.contextmanager
    def stream(self, stream):
        self.calls.append(f"on {stream.name}")
        yield
        self.calls.append("back")


class FakeStream:
    def __init__(self, torch, name):
        self.torch, self.name, self.events = torch, name, 0

    def record_event(self):
        self.events += 1
        self.torch.calls.append(f"record {self.events}")
        return self.events

    def wait_event(self, event):
        self.torch.calls.append(f"{self.name} waits {event}")


class FakeTensor:
    def __init__(self, torch, array):
        self.torch, self.array, self.place = torch, array, "pageable"

    def pin_memory(self):
        self.place = "pinned"
        return self

    def to(self, device, non_blocking):
        assert self.place == "pinned" and non_blocking
        self.torch.calls.append(f"copy {int(self.array[0])}")
        self.place = device.name
        return self

    def record_stream(self, stream):
        self.torch.calls.append(f"used on {stream.name}")


def test_preloader_copies_the_next_batch_before_this_one_is_used(monkeypatch):
    """On a GPU; there is none, but the calls to PyTorch."""
    torch = FakeTorch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(data.loader, "seeded", lambda seed: contextlib.nullcontext())
    preloader = data.Preloader(data.DataLoader([5, 6, 7]), "cuda:1")
    for batch in preloader:
        assert batch.place == "cuda:1"
        torch.calls.append(f"use {int(batch.array[0])}")
    copies = [["on own", f"copy {n}", f"record {n - 4}", "back"] for n in (5, 6, 7)]
    uses = [[f"current waits {n - 4}", "used on current", f"use {n}"] for n in (5, 6, 7)]
    assert torch.calls == sum([copies[0], copies[1], uses[0], copies[2], *uses[1:]], [])
