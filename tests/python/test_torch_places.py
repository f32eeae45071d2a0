"""Where the backend "tutti" has a GPU work, on a stand-in of torch.cuda: in which order, on which stream."""

import contextlib
import types

import pytest

torch = pytest.importorskip("torch", minversion="2.1")
from tutti.torch import _gpu  # noqa: E402
from tutti.torch._buckets import Bucket, Managed  # noqa: E402
from tutti.torch._lane import Lane  # noqa: E402
from tutti.torch._work import start  # noqa: E402


class Stream:
    def __init__(self, cuda, name):
        self.cuda, self.name = cuda, name

    def record_event(self):
        self.cuda.calls.append(f"event of {self.name}")
        return f"event of {self.name}"

    def wait_event(self, event):
        self.cuda.calls.append(f"{self.name} waits for {event}")

    def wait_stream(self, other):
        self.cuda.calls.append(f"{self.name} waits for {other.name}")

    def synchronize(self):
        self.cuda.calls.append(f"{self.name} is waited for")
        if self.cuda.fails:
            raise RuntimeError("the GPU has failed")


class Cuda:
    """torch.cuda, as far as it is used: what is called, in order."""

    def __init__(self):
        self.calls = []
        self.fails = False
        self.current = Stream(self, "caller's")

    def Stream(self, device):  # noqa: N802 - PyTorch's name
        return Stream(self, f"own of {device}")

    def current_stream(self, device):
        return self.current

    def set_device(self, device):
        self.calls.append(f"set {device}")

    @contextlib.contextmanager
    def stream(self, stream):
        self.calls.append(f"on {stream.name}")
        yield
        self.calls.append("back")

    @contextlib.contextmanager
    def device(self, device):
        self.calls.append(f"in {device}")
        yield
        self.calls.append("out")


@pytest.fixture
def cuda(monkeypatch):
    made = Cuda()
    monkeypatch.setattr(torch, "cuda", made)
    _gpu._stream.cache_clear()
    yield made
    _gpu._stream.cache_clear()


def on_gpu(number):
    """What looks like a tensor there."""
    return types.SimpleNamespace(is_cuda=True, device=f"gpu {number}")


LATER = ["event of caller's", "set gpu 1", "on own of gpu 1", "own of gpu 1 waits for event of caller's",
         "call", "own of gpu 1 is waited for", "back"]


def test_a_thread_comes_after_the_caller_and_waits_for_the_gpu(cuda):
    lane = Lane("places")
    begun = cuda.calls
    # The future wants real devices: only the inputs are on a GPU.
    work = start(lane, [], lambda: cuda.calls.append("call"), [torch.ones(1), on_gpu(1)])
    assert work.wait() and begun == LATER
    lane.end(5)


def test_the_maker_of_a_place_keeps_its_current_gpu(cuda):
    _gpu.later([on_gpu(1)], lambda: cuda.calls.append("call"))()
    assert cuda.calls == ["event of caller's", "in gpu 1", *LATER[2:], "out"]


def test_a_gpu_that_fails_ends_the_operation(cuda):
    cuda.fails = True
    lane = Lane("places")
    work = start(lane, [], lambda: None, [on_gpu(1)])
    with pytest.raises(RuntimeError, match="the GPU has failed"):
        work.wait()
    lane.end(5)


def test_here_is_the_gpu_of_the_tensors(cuda):
    _gpu.here([torch.ones(1), on_gpu(1)], lambda: cuda.calls.append("call"))
    assert cuda.calls == ["in gpu 1", "call", "out"]


def test_tensors_of_a_cpu_ask_no_gpu(cuda):
    _gpu.here([torch.ones(1)], lambda: None)
    lane = Lane("places")
    assert start(lane, [torch.ones(1)], lambda: None).wait()
    assert cuda.calls == []
    lane.end(5)


class OnGpu(torch.Tensor):
    """Of a CPU, but does not say so."""

    is_cuda = True


def test_a_bucket_is_sent_after_all_streams_that_have_written_it(cuda):
    parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(3)]
    bucket = Bucket([0, 1, 2], [Managed(str(i), parameter) for i, parameter in enumerate(parameters)],
                    torch.zeros(6).as_subclass(OnGpu))
    for place, name in enumerate(("first", "second", "second")):
        parameters[place].grad = torch.full((2,), float(place))
        cuda.current = Stream(cuda, name)
        bucket.take(place)
        cuda.current = Stream(cuda, "sender")
    bucket.note()
    bucket.note()
    assert bucket.flat.tolist() == [0, 0, 1, 1, 2, 2]
    assert [call for call in cuda.calls if call.endswith("first")] == ["sender waits for first"]
    assert "sender waits for second" in cuda.calls
