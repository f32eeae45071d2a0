"""MegEngine's functional collectives: a new array as the result, and gradients where PyTorch
differentiates.

`inp` is a NumPy array or a PyTorch tensor of the same shape and dtype on all ranks of `group`,
whose first rank is the root. `device` is PyTorch's name of one, on which the result is to be; left
out, that of inp. All functions are collective over the group, and block. Where inp is a tensor that
requires grad it does so on all ranks of the group, and all of them run the backward pass, which is
collective as well: the gradient of a sum is the sum of what all ranks make of it. Errors: those of
Communicator, and InvalidArgument before anything is sent.
"""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence

from tutti.distributed import _arrays, _autograd, _collectives, _mail, _world
from tutti.distributed._arrays import Description
from tutti.distributed._world import WORLD, Group, communicator_of
from tutti.errors import InvalidArgument

__all__ = ["all_gather", "all_reduce_max", "all_reduce_min", "all_reduce_sum", "all_to_all",
           "broadcast", "gather", "reduce_scatter_sum", "reduce_sum", "remote_recv", "remote_send",
           "scatter"]


def _everywhere(
    inp: Any, device: Optional[str], forward: Callable[[Any], Any], backward: Callable[[Any], Any]
) -> Any:
    """A collective whose result all ranks get."""
    if _autograd.is_differentiated(inp):
        return _arrays.to_device(_autograd.apply(inp, forward, backward), device)
    return _arrays.to_device(forward(inp), device)


def _at_root(
    name: str,
    inp: Any,
    group: Group,
    device: Optional[str],
    forward: Callable[[Any], Optional[Any]],
    backward: Callable[[Optional[Any]], Any],
) -> Optional[Any]:
    """A collective whose result the root gets alone. backward: of None elsewhere."""
    is_root = group.rank == 0
    if not _autograd.is_differentiated(inp):
        out = forward(inp)
        return _arrays.to_device(out, device) if is_root else None
    if is_root:
        return _arrays.to_device(_autograd.apply(inp, forward, backward), device)
    if _autograd.recording() is None:
        raise InvalidArgument(
            f"inp requires grad, but {name} gives this rank nothing whose backward pass could be "
            "asked for: call it inside `with GradManager() as gm:` and then gm.backward(), or pass "
            "inp.detach()")
    _autograd.leave(inp, forward, lambda: backward(None))
    return None


def _blank_like(inp: Any) -> Callable[[], Any]:
    """Makes memory for what has the shape of inp, without keeping that."""
    description = Description.of(inp, "inp")
    device = str(inp.device) if description.tensor else "cpu"
    return lambda: description.empty(device)


def _vector(inp: Any) -> Any:
    """inp; a single number as an array of one element, so that it has an axis."""
    array = _arrays.as_array(inp, "inp")
    return array if array.ndim > 0 else array.reshape(1)


def _from_root(name: str, group: Group, part: Callable[[], Description]) -> Description:
    """What the root will send to each rank: part() there, whose error all get."""
    fields = _arrays.blank_fields()
    if group.rank == 0:
        try:
            fields = part().pack()
        except Exception:
            fields[:] = -1
            group.communicator.broadcast(fields, 0)
            raise
    group.communicator.broadcast(fields, 0)
    if fields[0] == -1:
        raise InvalidArgument(f"rank {group.proc_ranks[0]}, the root, has refused what {name} was "
                              "given there; nothing was sent")
    return Description.unpack(fields)[2]


def _device_for(description: Description, group: Group, device: Optional[str]) -> str:
    if device is not None:
        return device
    return group.communicator.device if description.on_gpu else "cpu"


def reduce_sum(inp: Any, group: Group = WORLD, device: Optional[str] = None) -> Optional[Any]:
    """The sum over the ranks, on the root; None elsewhere. Its gradient is broadcast()."""
    comm, array = communicator_of(group), _arrays.as_array(inp, "inp")
    blank = _blank_like(array)
    return _at_root("reduce_sum", array, group, device,
                    lambda x: _collectives.reduce_sum(comm, x),
                    lambda gradient: _collectives.broadcast(comm, gradient, blank))


def broadcast(inp: Any = None, group: Group = WORLD, device: Optional[str] = None) -> Any:
    """A copy of the root's array. Elsewhere inp is not looked at and may be None: shape and dtype
    come from the root. Its gradient is reduce_sum()."""
    comm, is_root = communicator_of(group), group.rank == 0

    def describe() -> Description:
        array = _arrays.as_array(inp, "inp")
        return Description.of(array, "inp", _autograd.is_differentiated(array))

    description = _from_root("broadcast()", group, describe)
    array = _arrays.as_array(inp, "inp") if is_root else None
    place = _device_for(description, group, device)

    def forward(x: Optional[Any] = None) -> Any:
        return _collectives.broadcast(comm, x, lambda: description.empty(place))

    def backward(gradient: Any) -> Optional[Any]:
        return _collectives.reduce_sum(comm, gradient)

    return _from_elsewhere(array, description, device, forward, backward)


def _from_elsewhere(
    array: Optional[Any],
    description: Description,
    device: Optional[str],
    forward: Callable[..., Any],
    backward: Callable[[Any], Any],
) -> Any:
    """What the root, where `array` is not None, has part of, and the others do not."""
    if array is not None:
        return _everywhere(array, device, forward, backward)
    if description.requires_grad:
        return _autograd.source(forward, backward)
    return forward()


def all_gather(
    inp: Any, group: Group = WORLD, device: Optional[str] = None, axis: int = 0
) -> Any:
    """The arrays of all ranks, one after the other along an axis, which is world_size times as
    long. Its gradient is reduce_scatter_sum()."""
    comm, array = communicator_of(group), _vector(inp)
    axis = _arrays.axis_of(axis, array)
    return _everywhere(array, device, lambda x: _collectives.all_gather(comm, x, axis),
                       lambda gradient: _collectives.reduce_scatter_sum(comm, gradient, axis))


def reduce_scatter_sum(
    inp: Any, group: Group = WORLD, device: Optional[str] = None, axis: int = 0
) -> Any:
    """This rank's part, along an axis, of the sum over the ranks. The axis divides among them. Its
    gradient is all_gather()."""
    comm, array = communicator_of(group), _vector(inp)
    axis = _arrays.divisible_axis(axis, array, comm.world_size)
    return _everywhere(array, device, lambda x: _collectives.reduce_scatter_sum(comm, x, axis),
                       lambda gradient: _collectives.all_gather(comm, gradient, axis))


def all_reduce_sum(inp: Any, group: Group = WORLD, device: Optional[str] = None) -> Any:
    """The sum over the ranks. Its gradient is all_reduce_sum()."""
    comm = communicator_of(group)
    return _everywhere(_arrays.as_array(inp, "inp"), device,
                       lambda x: _collectives.all_reduce(comm, x, "sum"),
                       lambda gradient: _collectives.all_reduce(comm, gradient, "sum"))


def all_reduce_max(inp: Any, group: Group = WORLD, device: Optional[str] = None) -> Any:
    """The greatest element of the ranks, place by place. Its gradient is the sum of the gradients
    of all ranks where inp is that, and zero elsewhere."""
    return _all_reduce_most(inp, group, device, "max")


def all_reduce_min(inp: Any, group: Group = WORLD, device: Optional[str] = None) -> Any:
    """The least element of the ranks, place by place. Its gradient is as of all_reduce_max()."""
    return _all_reduce_most(inp, group, device, "min")


def _all_reduce_most(inp: Any, group: Group, device: Optional[str], op: _collectives.Op) -> Any:
    comm, array = communicator_of(group), _arrays.as_array(inp, "inp")
    if not _autograd.is_differentiated(array):
        return _arrays.to_device(_collectives.all_reduce(comm, array, op), device)
    is_chosen = []

    def forward(x: Any) -> Any:
        out = _collectives.all_reduce(comm, x, op)
        is_chosen.append(x == out)
        return out

    def backward(gradient: Any) -> Any:
        return _collectives.all_reduce(comm, gradient, "sum") * is_chosen[0]

    return _everywhere(array, device, forward, backward)


def gather(
    inp: Any, group: Group = WORLD, device: Optional[str] = None, axis: int = 0
) -> Optional[Any]:
    """The arrays of all ranks, one after the other along an axis, on the root; None elsewhere. Its
    gradient is scatter()."""
    comm, array = communicator_of(group), _vector(inp)
    axis = _arrays.axis_of(axis, array)
    blank = _blank_like(array)
    return _at_root("gather", array, group, device,
                    lambda x: _collectives.gather(comm, x, axis),
                    lambda gradient: _collectives.scatter(comm, gradient, axis, blank))


def scatter(
    inp: Any = None, group: Group = WORLD, device: Optional[str] = None, axis: int = 0
) -> Any:
    """This rank's part, along an axis, of the root's array. The axis divides among the ranks.
    Elsewhere inp is not looked at and may be None: shape and dtype come from the root. Its gradient
    is gather()."""
    comm, is_root = communicator_of(group), group.rank == 0

    def describe() -> Description:
        array = _vector(inp)
        cut = _arrays.divisible_axis(axis, array, comm.world_size)
        whole = Description.of(array, "inp", _autograd.is_differentiated(array))
        return whole._replace(shape=(*whole.shape[:cut], whole.shape[cut] // comm.world_size,
                                     *whole.shape[cut + 1 :]))

    description = _from_root("scatter()", group, describe)
    array = _vector(inp) if is_root else None
    axis %= len(description.shape)
    place = _device_for(description, group, device)

    def forward(x: Optional[Any] = None) -> Any:
        return _collectives.scatter(comm, x, axis, lambda: description.empty(place))

    def backward(gradient: Any) -> Optional[Any]:
        return _collectives.gather(comm, gradient, axis)

    return _from_elsewhere(array, description, device, forward, backward)


def all_to_all(
    inp: Any,
    group: Group = WORLD,
    device: Optional[str] = None,
    split_axis: int = 0,
    concat_axis: int = 0,
) -> Any:
    """Part number group.rank of every rank's array, which is cut along split_axis; these parts one
    after the other along concat_axis. split_axis divides among the ranks. Its gradient is
    all_to_all() with the axes exchanged."""
    comm, array = communicator_of(group), _vector(inp)
    cut = _arrays.divisible_axis(split_axis, array, comm.world_size, "split_axis")
    joined = _arrays.axis_of(concat_axis, array, "concat_axis")
    return _everywhere(array, device, lambda x: _collectives.all_to_all(comm, x, cut, joined),
                       lambda gradient: _collectives.all_to_all(comm, gradient, joined, cut))


def remote_send(inp: Any, dest_rank: int) -> Optional[Any]:
    """Sends an array to a rank of the world, which calls remote_recv(). Returns at once; the array
    may be used again. A function that launcher() runs ends when it has been received, or fails.
    What a rank sends, to whichever ranks, leaves in the order of these calls: the next array when
    the one before has been received.

    Of a tensor that requires grad the receiver sends back the gradient. Inside `with GradManager()`
    gm.backward() asks for it; otherwise the backward() of what this returns does, a zero, which
    blocks until it has come. Without a gradient this returns None.
    """
    mail, array = _world.join().mail, _arrays.as_array(inp, "inp")
    _world.check_peer("dest_rank", dest_rank)
    Description.of(array, "inp")  # refuses what cannot travel, before it has a number
    number = mail.next_to(dest_rank)
    if not _autograd.is_differentiated(array):
        mail.send(dest_rank, _mail.Kind.VALUE, number, array)
        return None
    blank = _blank_like(array)

    def backward() -> Any:
        answer = mail.receive(dest_rank, _mail.Kind.GRADIENT, number)
        return blank().zero_() if answer.array is None else answer.array

    return _autograd.leave(
        array, lambda x: mail.send(dest_rank, _mail.Kind.VALUE, number, x, True), backward)


def remote_recv(
    src_rank: int,
    device: Optional[str] = None,
    inp: Any = None,
    *,
    shape: Optional[Sequence[int]] = None,
    dtype: Any = None,
) -> Any:
    """The next array that a rank of the world sends here by remote_send(). Blocks until it has come.

    It is a tensor if it was one there, or if `inp` is. If the sender wants its gradient, it requires
    grad, and the backward pass here sends that. shape, dtype: refused if what has come is another;
    they need not be given.
    """
    mail = _world.join().mail
    _world.check_peer("src_rank", src_rank)
    number = mail.next_from(src_rank)
    parcel = mail.receive(src_rank, _mail.Kind.VALUE, number)
    what = parcel.description
    if shape is not None and tuple(shape) != what.shape:
        raise InvalidArgument(f"shape is {tuple(shape)}, but rank {src_rank} has sent {what.shape}")
    if dtype is not None and _arrays.name_of_dtype(dtype) != what.dtype:
        raise InvalidArgument(f"dtype is {dtype}, but rank {src_rank} has sent {what.dtype}")
    array = parcel.array
    if _arrays.is_tensor(inp) and not what.tensor:
        array = _arrays.as_tensor(array)
    if not what.requires_grad:
        return _arrays.to_device(array, device)


    def send_back(gradient: Optional[Any]) -> None:
        kind = _mail.Kind.NO_GRADIENT if gradient is None else _mail.Kind.GRADIENT
        mail.send(src_rank, kind, number, gradient)

    return _arrays.to_device(_autograd.arrive(array, send_back), device)
