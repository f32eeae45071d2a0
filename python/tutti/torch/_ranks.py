"""What all ranks of a group do together beside a step: compare, broadcast, average."""

# mypy: disable-error-code="misc,import"

from __future__ import annotations

import io
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

import numpy
import torch
import torch.distributed as dist

from tutti import _agreement
from tutti._agreement import described
from tutti.errors import InvalidArgument, MismatchError
from tutti.torch import _gpu
from tutti.torch._group import ProcessGroupTutti
from tutti.torch._tensors import in_place, movable
from tutti.torch._work import start


def group_of(group: Optional[Any]) -> ProcessGroupTutti:
    """`group`, or the default one, which must be tutti's."""
    found = dist.distributed_c10d._get_default_group() if group is None else group
    if not isinstance(found, ProcessGroupTutti):
        name = getattr(found, "name", lambda: type(found).__name__)()
        raise TypeError(f"group is one of the backend {name}, but must be of tutti: "
                        'init_process_group("tutti") or new_group(backend="tutti")')
    return found


def run(group: ProcessGroupTutti, call: Callable[[], Any],
        tensors: Sequence[torch.Tensor] = ()) -> Any:
    """Calls it once all that the group has under way has ended; what it returns. `tensors`: what it
    uses that may be on a GPU."""
    returned: List[Any] = []
    if group._lane.idle:
        _gpu.here(tensors, lambda: returned.append(call()))
    else:
        start(group._lane, [], lambda: returned.append(call()), tensors).wait()
    return returned[0]


def _bytes(data: bytes) -> torch.Tensor:
    """torch.frombuffer() wants at least one."""
    return torch.from_numpy(numpy.frombuffer(data, numpy.uint8).copy())


def agree(group: ProcessGroupTutti, what: str, mine: List[str]) -> None:
    """MismatchError on all ranks unless all have the same list of descriptions; it shows the first
    that differs. Collective and blocking."""
    run(group, lambda: _agreement.compare(group.communicator, what, mine))


_Parameters = Union[torch.nn.Module, Mapping[str, Any], Iterable[Tuple[str, torch.Tensor]]]


def broadcast_parameters(parameters: _Parameters, root: int = 0,
                         group: Optional[Any] = None) -> None:
    """Gives all ranks the values of rank `root` of the group, in place: of a model's parameters and
    buffers, of the tensors of a state_dict(), or of what named_parameters() yields.

    Collective and blocking. Ranks whose tensors differ in name, shape or type get a MismatchError
    that names the first that does.
    """
    ranks = group_of(group)
    if isinstance(parameters, torch.nn.Module):
        pairs = [*parameters.named_parameters(), *parameters.named_buffers()]
    elif isinstance(parameters, Mapping):
        pairs = [(name, value) for name, value in parameters.items()
                 if isinstance(value, torch.Tensor)]
    else:
        pairs = list(parameters)
    agree(ranks, "parameter", [described(name, tensor) for name, tensor in pairs])
    tensors = [tensor for _, tensor in pairs if tensor.numel()]
    run(ranks, lambda: _broadcast(ranks.communicator, tensors, root), tensors)


def _broadcast(communicator: Any, tensors: List[torch.Tensor], root: int) -> None:
    for tensor in tensors:
        in_place(movable(tensor), lambda all_of_it: communicator.broadcast(all_of_it, root))


def broadcast_state_of(optimizer: torch.optim.Optimizer, root: int,
                       group: Optional[Any]) -> None:
    """Gives all ranks the state_dict() of rank `root`'s optimiser, or an error where that cannot be
    saved. Collective and blocking."""
    ranks = group_of(group)
    communicator = ranks.communicator
    is_root = communicator.global_rank == root

    def call() -> bytes:
        data, error = b"", None
        if is_root:
            try:
                file = io.BytesIO()
                torch.save(optimizer.state_dict(), file)
                data = file.getvalue()
            except Exception as failed:  # the others wait
                error = failed
                data = f"{type(failed).__name__}: {failed}".encode()
        header = torch.tensor([len(data), error is not None], device="cpu")
        communicator.broadcast(header, root)
        length, has_failed = header.tolist()
        memory = _bytes(data) if is_root else torch.empty(length, dtype=torch.uint8,
                                                          device="cpu")
        communicator.broadcast(memory, root)
        if error is not None:
            raise error
        if has_failed:
            raise InvalidArgument(f"rank {root}, the root, could not save the optimiser's state: " +
                                  bytes(memory.numpy()).decode())
        return bytes(memory.numpy())

    data = run(ranks, call)
    if not is_root:
        optimizer.load_state_dict(torch.load(io.BytesIO(data), map_location="cpu",
                                             weights_only=False))


_NAME = 48  # bytes of a metric's name that travel
_Value = Union[float, torch.Tensor]


def average(value: _Value, name: str = "", group: Optional[Any] = None) -> Any:
    """The average of a metric over the ranks: of a number a float, added in rank order, of a
    tensor a new one, of float64 where it has integers.

    Collective and blocking. Ranks that ask for metrics of different name or shape get a
    MismatchError.
    """
    ranks = group_of(group)
    communicator = ranks.communicator
    if isinstance(value, torch.Tensor):
        whole = value.detach().clone(memory_format=torch.contiguous_format)
        if not whole.is_floating_point() and not whole.is_complex():
            whole = whole.double()
        agree(ranks, "metric", [described(name, whole)])
        if whole.numel():
            run(ranks, lambda: communicator.all_reduce(movable(whole), None, "average"), [whole])
        return whole
    mine = name.encode()[:_NAME].ljust(_NAME)
    number = torch.tensor([float(value)], dtype=torch.float64, device="cpu")
    record = torch.cat([_bytes(mine), number.view(torch.uint8)])
    everything = torch.empty((communicator.world_size, len(record)), dtype=torch.uint8, device="cpu")
    run(ranks, lambda: communicator.all_gather(record, everything))
    names = [bytes(row[:_NAME].numpy()) for row in everything]
    for rank, other in enumerate(names):
        if other != names[0]:
            raise MismatchError("the metric is '" + names[0].decode(errors="replace").rstrip() +
                                "' on rank 0, but '" + other.decode(errors="replace").rstrip() +
                                f"' on rank {rank}")
    values = everything[:, _NAME:].contiguous().view(torch.float64).flatten().tolist()
    return sum(values) / len(values)


Named = Union[Mapping[str, torch.Tensor], Iterable[Tuple[str, torch.Tensor]]]


def pairs_of(named_parameters: Optional[Named]) -> List[Tuple[str, torch.Tensor]]:
    """Of what a caller has given as named_parameters."""
    pairs = list(named_parameters.items() if isinstance(named_parameters, Mapping)
                 else named_parameters or ())
    for pair in pairs:
        if not (isinstance(pair, (tuple, list)) and len(pair) == 2 and isinstance(pair[0], str) and
                isinstance(pair[1], torch.Tensor)):
            raise TypeError(f"named_parameters has a {type(pair).__name__}, but must be a mapping, or "
                            "pairs, of names and parameters, as model.named_parameters() is")
    return pairs


def names_of(optimizer: torch.optim.Optimizer, named_parameters: List[Tuple[str, torch.Tensor]],
             are_all: bool) -> Dict[int, str]:
    """What each parameter of an optimiser is called, by its id(). are_all: whether each must be
    among the named ones."""
    names: Dict[int, str] = {}
    taken: Dict[str, int] = {}
    for name, parameter in named_parameters:
        if taken.setdefault(name, id(parameter)) != id(parameter):
            raise InvalidArgument(f"named_parameters has two parameters of the name {name!r}")
        names.setdefault(id(parameter), name)
    nameless = []
    for g, group in enumerate(optimizer.param_groups):
        for p, parameter in enumerate(group["params"]):
            name = f"param_groups[{g}]['params'][{p}]"
            if id(parameter) not in names:
                nameless.append(f"{name} of shape {tuple(parameter.shape)}")
            names.setdefault(id(parameter), name)
    if are_all and nameless:
        raise InvalidArgument("named_parameters lacks parameters of the optimiser: " +
                              ", ".join(nameless[:3]) +
                              (f" and {len(nameless) - 3} more" if len(nameless) > 3 else ""))
    return names
