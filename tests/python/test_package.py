"""The package around the bindings: helpers, types, info, PyTorch, mpi4py."""

import importlib.util
import logging
import os
import pathlib
import re
import subprocess
import sys
import types

import numpy
import pytest

import launching
import tutti
from tutti import data, opt


ROOT = pathlib.Path(__file__).parents[2]


def needs(package):
    return pytest.mark.skipif(importlib.util.find_spec(package) is None, reason=f"no {package}")


def test_data_partition():
    x, y = numpy.arange(10), numpy.arange(10) * 2
    for ranks in (1, 2, 3, 4, 7, 15):
        parts = [tutti.data_partition(x, y, rank, ranks) for rank in range(ranks)]
        assert {len(part) for part, _ in parts} == {-(-10 // ranks)}
        assert set(numpy.concatenate([part for part, _ in parts])) == set(range(10))
        assert all((labels == 2 * part).all() for part, labels in parts)
    assert tutti.data_partition(x, y, 3, 4)[0].tolist() == [9, 0, 1]
    assert tutti.data_partition(x, y, 0, 2)[0].base is x  # no copy where none is needed
    for arguments in [(x, y[1:], 0, 1), (x, y, 2, 2), (x[:0], y[:0], 0, 1)]:
        with pytest.raises(tutti.InvalidArgument):
            tutti.data_partition(*arguments)


def broadcasting(place):
    comm = place.communicator()
    params = {name: numpy.full(5, place.rank, numpy.float32) for name in "ab"}
    tutti.broadcast_parameters(params, comm, root=1)
    tutti.broadcast_parameters(list(params.values()), comm)
    assert all((array == 1).all() for array in params.values())


def test_broadcast_parameters():
    launching.run(broadcasting, 2, "fork")


def model(value):
    return {"weight": numpy.full((3, 2), value, numpy.float32), "bias": numpy.full(2, float(value)),
            "steps": numpy.array(value, numpy.int64), "mask": numpy.full(2, value > 0)}


def saving_and_loading(place, folder):
    comm = place.communicator()
    path = pathlib.Path(folder, "model.npz")
    tutti.save_parameters(path, model(place.rank + 5), comm, root=1)
    with numpy.load(path) as saved:
        assert (saved["parameter:weight"] == 6).all()
    mine = model(0)
    tutti.load_parameters(path if place.rank == 0 else "of no rank but 0", mine, comm)
    assert all((array == (6 if name != "mask" else True)).all() for name, array in mine.items())
    assert mine.pop("mask").dtype == bool

    tutti.save_parameters(path, mine, comm)
    strided = model(0)
    del strided["mask"]
    strided["weight"] = numpy.zeros((2, 3), numpy.float32).T
    with pytest.raises(tutti.Error, match="parameter weight is not contiguous"):
        tutti.load_parameters(path, strided, comm)
    assert not any(array.any() for array in strided.values())

    path.write_bytes(path.read_bytes()[:-100])
    cases = [("none.npz", mine, FileNotFoundError, "none.npz"),
             (path, mine, ValueError, "model.npz: not a file that tutti saved")]
    tutti.save_parameters(path.with_suffix(".other"), list(mine.values()), comm)
    path = path.with_suffix(".other")
    cases += [(path, mine, tutti.InvalidArgument, "not of these parameters: 0, 1, 2, bias, steps"),
              (path, [mine["weight"], numpy.zeros(2, numpy.float32), mine["steps"]],
               tutti.InvalidArgument, r"parameter 1 is float64 \[2\], but the model's is float32")]
    for wrong, params, kind, reason in cases:
        with pytest.raises(tutti.Error if place.rank else kind, match=reason):
            tutti.load_parameters(wrong, params, comm)
        assert all((array == 6).all() for array in mine.values())
    for wrong, params, kind in [("/dev/null", mine, OSError), (path, {"a": "b"}, ValueError)]:
        with pytest.raises(tutti.Error if place.rank else kind, match="null|parameter a is of <U1"):
            tutti.save_parameters(wrong, params, comm)


def test_save_and_load_parameters(tmp_path):
    launching.run(saving_and_loading, 2, "fork", str(tmp_path))


def loading_into_others(place, path):
    """What is wrong on another rank than the root changes nothing on any."""
    comm = place.communicator()
    tutti.save_parameters(path, model(5), comm)
    others = {"bias": numpy.zeros(3), "steps": numpy.zeros((), numpy.int32)}
    for name, other in others.items():
        mine = {**model(0), **({name: other} if place.rank else {})}
        with pytest.raises(tutti.MismatchError, match=f"is '{name}' .* on rank 0, but '{name}' .* on rank 1"):
            tutti.load_parameters(path, mine, comm)
        assert not any(array.any() for array in mine.values())
    read_only = model(0)["mask"]
    read_only.flags.writeable = False
    for name, other, told in [("weight", numpy.zeros((2, 3), numpy.float32).T, "weight is not contiguous"),
                              ("mask", read_only, "mask is read-only")]:
        mine = {**model(0), **({name: other} if place.rank else {})}
        with pytest.raises(tutti.InvalidArgument if place.rank else tutti.Error,
                           match=f"parameter {told}" if place.rank else f"rank 1: .*parameter {told}"):
            tutti.load_parameters(path, mine, comm)
        assert not any(array.any() for array in mine.values())
    mine = model(0)
    tutti.load_parameters(path, mine, comm)
    assert all((array == (5 if name != "mask" else True)).all() for name, array in mine.items())


def test_parameters_of_other_ranks_are_checked_before_any_is_loaded(tmp_path):
    launching.run(loading_into_others, 2, "fork", str(tmp_path / "model"))


def saving_and_loading_tensors(place, path):
    import torch

    comm = place.communicator()
    net = torch.nn.Linear(3, 2)
    with torch.no_grad():
        net.weight.fill_(place.rank + 1)
    tutti.save_parameters(path, net.state_dict(), comm)
    for params in (net.state_dict(), dict(net.named_parameters())):
        with torch.no_grad():
            net.weight.fill_(9)
        tutti.load_parameters(path, params, comm)
        assert (net.weight == 1).all() and net.weight.requires_grad
    with pytest.raises(tutti.Error, match="parameter half: .*BFloat16"):
        tutti.save_parameters(path, {"half": torch.ones(2, dtype=torch.bfloat16)}, comm)


@needs("torch")
def test_save_and_load_parameters_of_pytorch(tmp_path):
    launching.run(saving_and_loading_tensors, 2, "spawn", str(tmp_path / "model"))


def test_info():
    text = subprocess.run([sys.executable, "-m", "tutti.info"], capture_output=True, text=True,
                          check=True, timeout=60).stdout
    for word in (tutti.__version__, "MPI", "NCCL", "GPUs", "shared memory"):
        assert word in text


@pytest.mark.parametrize("variables, said", [
    ({"TUTTI_TICKET": "00" * 128}, "shared memory (started by tutti run)"),
    ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"},
     "shared memory inside a host, MPI between hosts (started by tutti run)"),
])
def test_info_of_a_rank_of_tutti_run(variables, said):
    environment = {**os.environ, "TUTTI_RANK": "0", "TUTTI_WORLD_SIZE": "2", **variables}
    text = subprocess.run([sys.executable, "-m", "tutti.info"], env=environment, capture_output=True,
                          text=True, check=True, timeout=60).stdout
    assert f"{said}\n" in text


def logged_lines(place):
    heard = []
    handler = logging.Handler()
    handler.emit = heard.append
    logger = logging.getLogger("tutti")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    os.environ["TUTTI_HOST_ID"] = os.environ["OMPI_COMM_WORLD_RANK"]  # MPI carries the bytes
    place.communicator().close()
    logger.setLevel(logging.WARNING)
    place.communicator().close()
    return [(record.levelno, record.getMessage()) for record in heard]


def test_the_librarys_lines_are_records_of_logging():
    first, second = launching.run(logged_lines, 2, "mpi")
    assert {level for level, _ in first} == {logging.INFO}
    assert any("MPI" in text and "kernels" in text for _, text in first)
    assert not any("kernels" in text for _, text in second)  # rank 0 speaks for all


@pytest.mark.parametrize("wanted, configured, expected", [
    ("info", False, r"(tutti info: .*\n)*tutti info: shared memory among 1 ranks of one host; \w+ kernels\n"),
    ("info", True, r"(INFO tutti .*\n)*INFO tutti shared memory.*\n"),
    ("warn", False, ""),
    ("loud", False, r"(?s).*TUTTI_LOG is 'loud', but must be.*"),
])
def test_tutti_log(wanted, configured, expected):
    script = """if True:
        import logging, sys, tutti
        if sys.argv[1] == "True":
            logging.basicConfig(format="%(levelname)s %(name)s %(message)s", level=logging.INFO)
        tutti.Communicator(0, 1, tutti.NcclIdHolder())
        """
    done = subprocess.run([sys.executable, "-c", script, str(configured)], text=True, timeout=60,
                          capture_output=True, env=dict(os.environ, TUTTI_LOG=wanted))
    assert re.fullmatch(expected, done.stderr), done.stderr


def test_everything_public_is_documented():
    for name in tutti.__all__:
        thing = getattr(tutti, name)
        assert name == "__version__" or thing.__doc__, name
        if isinstance(thing, type):
            for member in vars(thing):
                text = getattr(thing, member).__doc__ or ""
                lines = [line for line in text.splitlines() if line and not line.startswith(member)]
                assert member.startswith("_") or lines, f"{name}.{member}"
    for name in data.__all__:
        thing = getattr(data, name)
        assert thing.__doc__, name
        for member, value in vars(thing).items() if isinstance(thing, type) else ():
            assert member.startswith("_") or not callable(value) or value.__doc__, member
    for kind in (opt.DistOpt, opt.Optimizer, opt.SGD, opt.Adam, opt.AdamW, opt.Adagrad):
        assert kind.__doc__, kind
        for member in dir(kind):
            assert member.startswith("_") or getattr(kind, member).__doc__, member


def test_help_says_what_a_collective_returns():
    texts = [text for thing in vars(tutti.Communicator).values()
             if "stream: " in (text := thing.__doc__ or "")]
    assert len(texts) == 14
    for text in texts:
        assert text.splitlines()[0].endswith("-> tutti._core.Event"), text


def test_help_has_no_types_of_cpp():
    for name in tutti.__all__:
        for member, thing in vars(getattr(tutti, name)).items() if isinstance(
                getattr(tutti, name), type) else ():
            text = thing.__doc__ or ""
            assert "::" not in text and ": handle" not in text, f"{name}.{member}: {text}"


class Model:
    """What the documents' examples suppose."""

    def __init__(self, tape):
        self.tape = tape
        self.layers = [types.SimpleNamespace(weight=numpy.ones(3, numpy.float32),
                                             bias=numpy.ones(1, numpy.float32),
                                             d_weight=lambda: numpy.ones(3, numpy.float32),
                                             d_bias=lambda: numpy.ones(1, numpy.float32))
                       for _ in range(2)]

    def forward(self, x, y):
        self.tape.append((x, y))

    def backward(self):
        for layer in self.layers:
            yield layer.weight, layer.d_weight()


def documents(place):
    for document in ("README.md", "docs/python.md"):
        text = (ROOT / document).read_text()
        tape = []
        names = dict(tutti=tutti, model=Model(tape), batches=lambda rank, size: [(rank, size)] * 2)
        for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
            if "sgd" not in names and "sgd" in block and "opt.DistOpt" not in block:
                names["sgd"] = place.dist_opt(opt.SGD(lr=0.5))
            if "mpi4py" in block and importlib.util.find_spec("mpi4py") is None:
                continue
            if "nccl_id" in block or "tutti.torch" in block:  # a GPU; test_torch_backend.py
                continue
            exec(compile(block, document, "exec"), names)
            tape.append(block)
        assert len(tape) > 1, document
        assert names["model"].layers[0].weight[0] < 1, document


def test_the_documents_examples_run():
    launching.run(documents, 2, "mpi")


SCRIPT = """
from typing import Iterator, Optional, Tuple
import numpy as np
import numpy.typing as npt
import tutti
from tutti import data, opt

Pair = Tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]

def backward(param: npt.NDArray[np.float32]) -> Iterator[Pair]:
    yield param, np.ones_like(param)

def train(nccl_id: Optional[tutti.NcclIdHolder] = None, local_rank: Optional[int] = None,
          world_size: Optional[int] = None) -> int:
    sgd = opt.DistOpt(opt.SGD(lr=0.1, momentum=0.9), nccl_id=nccl_id, local_rank=local_rank,
                      world_size=world_size)
    param = np.zeros(3, np.float32)
    sgd(backward(param))
    sgd.backward_and_sparse_update(backward(param), spars=0.5, topK=True)
    x, y = tutti.data_partition(param, param, sgd.global_rank, sgd.world_size)
    event = sgd.communicator.all_reduce(x, op="max", stream=tutti.Stream())
    event.wait()
    try:
        sgd.communicator.barrier()
    except tutti.PeerLost as lost:
        print(lost.ranks, lost.reason)
    sampler = data.RandomSampler(x, 4, world_size=sgd.world_size, rank=sgd.global_rank, pad="drop")
    loader = data.DataLoader(data.ArrayDataset(x, y), data.Infinite(sampler), num_workers=1)
    loader.load_state_dict(loader.state_dict())
    for images, labels in loader:
        print(images, labels)
    data.RandomSampler(x, pad="join")  # type: ignore[arg-type]
    sgd.opt.lr *= 0.5
    print(opt.DistOpt(opt.AdamW(betas=(0.8, 0.9))).opt.lr, opt.Adagrad(lr_decay=0.5).eps)
    opt.SGD(learning_rate=0.1)  # type: ignore[call-arg]  # or mypy has not seen the types
    return sgd.world_size
"""


def test_an_old_pytorch_is_refused_by_its_version():
    code = ("import sys, types; sys.modules['torch'] = torch = types.ModuleType('torch'); "
            "torch.__version__ = '1.13.1'; import tutti.torch")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "ImportError: tutti.torch needs PyTorch 2.1 or newer; this is 1.13.1" in done.stderr, done.stderr


@needs("mypy")
def test_a_script_passes_mypy_strict(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    # As where PyTorch is not: reading its annotations takes minutes, and older ones have mistakes.
    settings = tmp_path / "mypy.ini"
    settings.write_text("[mypy]\n[mypy-torch.*]\nfollow_imports = skip\n")
    mypy = [sys.executable, "-m", "mypy", "--strict", "--config-file", settings, "--cache-dir",
            tmp_path / "cache"]
    for what in ([script], ["-p", "tutti"]):
        done = subprocess.run([*mypy, *what], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr


def beside_mpi4py(place):
    from mpi4py import MPI

    comm = tutti.Communicator.from_mpi(MPI.COMM_WORLD)
    part = MPI.COMM_WORLD.Split(0, -MPI.COMM_WORLD.rank)
    reversed_comm = tutti.Communicator.from_mpi(part)
    part.Free()
    array = numpy.full(1000, comm.global_rank, numpy.float32)
    comm.all_reduce(array)
    assert (array == sum(range(comm.world_size))).all()
    assert reversed_comm.global_rank == comm.world_size - 1 - comm.global_rank
    world = tutti.Communicator()
    world.barrier()
    for one in (comm, reversed_comm, world):
        one.close()
    assert MPI.COMM_WORLD.allreduce(1) == array.size // 1000 * MPI.COMM_WORLD.size  # goes on working
    with pytest.raises(tutti.InvalidArgument, match="MPI_COMM_NULL"):
        tutti.Communicator.from_mpi(MPI.COMM_NULL)
    with pytest.raises(TypeError, match="comm is a int"):
        tutti.Communicator.from_mpi(5)


@needs("mpi4py")
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_beside_mpi4py(ranks):
    launching.run(beside_mpi4py, ranks, "mpi")
