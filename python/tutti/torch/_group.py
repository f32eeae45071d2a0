"""The backend "tutti" of torch.distributed: a process group over a tutti.Communicator."""

# mypy: disable-error-code="misc,import"

from __future__ import annotations

from datetime import timedelta
from typing import Any, Callable, List, Optional, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from tutti.errors import CommunicationError, InvalidArgument
from tutti.torch import _gpu, _memory, _sparse
from tutti.torch._group_names import Named
from tutti.torch._lane import Lane
from tutti.torch._messages import ANY, Mailbox
from tutti.torch._monitored import MonitoredBarriers
from tutti.torch._tensors import (
    by_type,
    factor_of,
    in_place,
    into,
    into_all,
    joined,
    lengths,
    movable,
    one,
    one_a_rank,
    plain,
    reduction,
)
from tutti.torch._work import TELLS_ASYNC, TuttiWork, ended, keep, shown, start

Tensors = List[Tensor]


class ProcessGroupTutti(Named, dist.ProcessGroup):
    """What init_process_group("tutti") and new_group(backend="tutti") make; torch.distributed's
    functions take it, and call its methods. A list has one tensor, or one for each rank, as PyTorch
    passes it; `opts` has `rootRank`, `reduceOp` and so on. Each returns a Work, whose future has what
    was written.

    Operations run one after the other in the order of the calls: those whose caller waits at once
    on its own thread, others on a thread of the group's. Messages are apart from them.
    """

    supports_splitting = False
    supports_coalescing = False

    def __init__(self, communicator: Any, timeout: float) -> None:
        super().__init__(communicator.global_rank, communicator.world_size)
        self.communicator = communicator
        self._timeout = timeout
        self._lane = Lane("tutti collectives")
        self._mailbox = Mailbox(communicator, timeout)
        self._barriers = MonitoredBarriers(self._mailbox.store, self.rank(), self.size())
        self._ended = ended()
        self._is_open = True
        memory = _memory.for_buckets(communicator, self._lane)
        if memory is not None:
            kind = dist.ProcessGroup.BackendType.CUSTOM
            self._register_backend(torch.device("cpu"), kind, memory)
            self._set_default_backend(kind)

    # What PyTorch asks of a group.

    def rank(self) -> int:
        """This process's number in the group."""
        return int(self.communicator.global_rank)

    def size(self) -> int:
        """How many ranks the group has."""
        return int(self.communicator.world_size)

    def _get_backend(self, device: Any) -> Any:
        return self

    @property
    def _device_types(self) -> List[torch.device]:
        """None while the group is being made: to those that have some, PyTorch then attaches a
        recorder, which wants backends in C++."""
        if self not in distributed_c10d._world.pg_map:
            return []
        return [torch.device("cpu")] + ([torch.device("cuda")] if torch.cuda.is_available() else [])

    def _set_default_timeout(self, timeout: timedelta) -> None:
        raise InvalidArgument("a group keeps the timeout that it was made with")

    def _set_sequence_number_for_group(self) -> None:
        pass

    def __repr__(self) -> str:
        return f"ProcessGroupTutti(rank {self.rank()} of {self.size()})"

    # How it ends.

    def shutdown(self) -> None:
        """Leaves the group: what is under way is given up. As destroy_process_group() does. A forked
        child has nothing to leave."""
        if not self._is_open or self._lane.is_inherited:
            return
        self._is_open = False
        if self._mailbox.moves or self._lane.is_under_way:
            self.communicator.abort("its process group was destroyed")
        try:
            self._mailbox.close()
        except CommunicationError:  # it has failed before
            pass
        self._lane.end(timeout=5)
        self.communicator.close()

    def abort(self) -> None:
        """Gives up: the other ranks are told so."""
        if self._lane.is_inherited:
            return
        self.communicator.abort("its process group was aborted")
        self.shutdown()

    def __del__(self) -> None:
        if getattr(self, "_is_open", False):
            self.shutdown()

    # How operations run.

    def _do(self, name: str, options: Any, inputs: Tensors, results: Tensors,
            call: Callable[[], Any]) -> Any:
        """Runs `call`, here if the caller is to wait for it anyway; a Work with its results.
        PyTorch's profiler shows it by its name, with the inputs' shapes."""
        call = shown(name, inputs, call)
        if TELLS_ASYNC and options is not None and not options.asyncOp:
            if self._lane.idle:
                _gpu.here([*results, *inputs], call)
                return self._ended
        return start(self._lane, results, call, inputs)

    def _reduce_here(self, tensor: Tensor, op: Any) -> None:
        self.communicator.all_reduce(tensor, None, reduction(op, tensor.dtype), factor_of(op))

    # Collectives.

    def allreduce(self, tensors: Any, opts: Any = None, timeout: Any = None) -> Any:
        """Sums a tensor over all ranks, or as `opts` says, in place; a sparse one, too."""
        op = dist.ReduceOp.SUM if opts is None else getattr(opts, "reduceOp", opts)
        if isinstance(tensors, Tensor):
            tensors = [tensors]
        given = one(tensors, "all_reduce")
        if given.is_sparse:
            return keep(self._do("all_reduce", None, tensors, tensors,
                                 lambda: _sparse.all_reduce(self.communicator, given, op)))
        tensor = plain(given)
        options = opts if hasattr(opts, "asyncOp") else None
        return keep(self._do("all_reduce", options, tensors, tensors, lambda: in_place(
            tensor, lambda all_of_it: self._reduce_here(all_of_it, op))))

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Any:
        """The same of several tensors: those of one type travel together."""
        op = dist.ReduceOp.SUM if opts is None else opts.reduceOp
        groups = by_type([plain(tensor) for tensor in tensors])

        def call() -> None:
            for group in groups:
                flat = joined(group)
                self._reduce_here(flat, op)
                if flat.data_ptr() != group[0].data_ptr():
                    into_all(group, lambda all_of_them: all_of_them.copy_(flat))

        return self._do("all_reduce_coalesced", opts, tensors, tensors, call)

    def reduce(self, tensors: Tensors, opts: Any) -> Any:
        """Sums a tensor, or as `opts` says, in place on the root."""
        tensor = plain(one(tensors, "reduce"))
        root, op = opts.rootRank, opts.reduceOp

        def call() -> None:
            in_place(tensor, lambda all_of_it: self.communicator.reduce(
                all_of_it, root, None, reduction(op, tensor.dtype), factor_of(op)))

        return self._do("reduce", opts, tensors, tensors, call)

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        """Gives all ranks the root's tensor, in place; without `opts` that is rank 0's."""
        tensor = movable(one(tensors, "broadcast"))
        root = 0 if opts is None else opts.rootRank
        return keep(self._do("broadcast", opts, tensors, tensors, lambda: in_place(
            tensor, lambda all_of_it: self.communicator.broadcast(all_of_it, root))))

    def allgather(self, outputs: List[Tensors], inputs: Tensors, opts: Any = None) -> Any:
        """Gives all ranks the tensors of all, which may differ in length."""
        parts = [movable(part) for part in one(outputs, "output_tensors")]
        tensor = movable(one(inputs, "input_tensors"))
        return keep(self._do("all_gather", opts, inputs, outputs[0],
                             lambda: self._gather_all(parts, tensor)))

    def _gather_all(self, parts: Tensors, tensor: Tensor) -> None:
        if len(parts) != self.size():
            raise InvalidArgument(f"all_gather has {len(parts)} tensors for its output, but there "
                                  f"are {self.size()} ranks")
        counts = [part.numel() for part in parts]
        if counts[self.rank()] != tensor.numel():
            raise InvalidArgument(f"all_gather's tensor has {tensor.numel()} elements, but its "
                                  f"place in the output {counts[self.rank()]}")
        lengths = None if len(set(counts)) == 1 else counts
        into_all(parts, lambda flat: self.communicator.all_gather(
            tensor.contiguous(), flat, lengths))

    def _allgather_base(self, output: Tensor, tensor: Tensor, opts: Any = None) -> Any:
        """Gives all ranks one output, in which the tensors of the ranks follow each other."""
        to, source = movable(output), movable(tensor)
        return self._do("all_gather", opts, [tensor], [output], lambda: into(
            to, lambda all_of_it: self.communicator.all_gather(source.contiguous(), all_of_it)))

    def allgather_coalesced(self, output_lists: List[Tensors], tensors: Tensors,
                            opts: Any = None) -> Any:
        """The same of several tensors: a list of results for each rank."""
        lists = [[movable(part) for part in parts] for parts in output_lists]
        sources = [movable(tensor) for tensor in tensors]

        def call() -> None:
            for i, source in enumerate(sources):
                self._gather_all([parts[i] for parts in lists], source)

        return self._do("all_gather_coalesced", opts, tensors,
                        [part for parts in output_lists for part in parts], call)

    def allgather_into_tensor_coalesced(self, outputs: Tensors, tensors: Tensors,
                                        opts: Any = None) -> Any:
        """The same of several tensors, each with its output."""
        pairs = [(movable(to), movable(source)) for to, source in zip(outputs, tensors)]

        def call() -> None:
            for to, source in pairs:
                into(to, lambda all_of_it: self.communicator.all_gather(
                    source.contiguous(), all_of_it))

        return self._do("all_gather_coalesced", opts, tensors, outputs, call)

    def gather(self, outputs: List[Tensors], inputs: Tensors, opts: Any) -> Any:
        """Gives the root the tensors of all, equally long; the others have no outputs."""
        root = opts.rootRank
        tensor = movable(one(inputs, "input_tensors"))
        parts = [movable(part) for part in one(outputs, "output_tensors")] if outputs else []
        if self.rank() == root:
            one_a_rank(parts, self.size(), tensor.numel(), "gather_list")

        def call() -> None:
            if self.rank() != root:
                self.communicator.gather(tensor.contiguous(), None, root)
                return
            into_all(parts, lambda flat: self.communicator.gather(tensor.contiguous(), flat, root))

        return self._do("gather", opts, inputs, outputs[0] if outputs else [], call)

    def gather_single(self, output: Optional[Tensor], tensor: Tensor, opts: Any) -> Any:
        """The same into one output, in which those of the ranks follow each other."""
        is_root = self.rank() == opts.rootRank
        parts: Tensors = list(output.chunk(self.size())) if is_root and output is not None else []
        return self.gather([parts] if is_root else [], [tensor], opts)

    def scatter(self, outputs: Tensors, inputs: List[Tensors], opts: Any) -> Any:
        """Gives each rank its tensor of the root's list; the others have no inputs."""
        root = opts.rootRank
        to = movable(one(outputs, "output_tensors"))
        parts = [movable(part) for part in one(inputs, "input_tensors")] if inputs else []
        if self.rank() == root:
            one_a_rank(parts, self.size(), to.numel(), "scatter_list")
        return self._do("scatter", opts, parts, outputs, lambda: into(
            to, lambda all_of_it: self.communicator.scatter(
                joined(parts) if self.rank() == root else None, all_of_it, root)))

    def reduce_scatter(self, outputs: Tensors, inputs: List[Tensors], opts: Any = None) -> Any:
        """Sums a list of tensors, or as `opts` says; each rank gets that of its number."""
        to = plain(one(outputs, "output_tensors"))
        parts = [plain(part) for part in one(inputs, "input_tensors")]
        if len(parts) != self.size() or parts[self.rank()].numel() != to.numel():
            raise InvalidArgument(
                f"input_list has tensors of {[part.numel() for part in parts]} elements, but must have one "
                f"for each of {self.size()} ranks, and that of this rank {to.numel()}, as output has")
        op = dist.ReduceOp.SUM if opts is None else opts.reduceOp
        return keep(self._do("reduce_scatter", opts, parts, outputs,
                             lambda: self._scatter_sum(to, parts, op)))

    def _scatter_sum(self, to: Tensor, parts: Tensors, op: Any) -> None:
        counts = [part.numel() for part in parts]
        lengths = None if len(set(counts)) == 1 else counts
        into(to, lambda all_of_it: self.communicator.reduce_scatter(
            joined(parts), all_of_it, reduction(op, to.dtype), factor_of(op), counts=lengths))

    def _reduce_scatter_base(self, output: Tensor, tensor: Tensor, opts: Any = None) -> Any:
        """Sums a tensor, of which each rank gets its part: all parts are equally long."""
        to, source = plain(output), plain(tensor)
        op = dist.ReduceOp.SUM if opts is None else opts.reduceOp
        return self._do("reduce_scatter", opts, [tensor], [output],
                        lambda: self._scatter_sum(to, [source], op))

    def reduce_scatter_tensor_coalesced(self, outputs: Tensors, tensors: Tensors,
                                        opts: Any = None) -> Any:
        """The same of several tensors, each with its output."""
        op = dist.ReduceOp.SUM if opts is None else opts.reduceOp
        pairs = [(plain(to), plain(source)) for to, source in zip(outputs, tensors)]

        def call() -> None:
            for to, source in pairs:
                self._scatter_sum(to, [source], op)

        return self._do("reduce_scatter_coalesced", opts, tensors, outputs, call)

    def alltoall_base(self, output: Tensor, tensor: Tensor, output_splits: Sequence[int],
                      input_splits: Sequence[int], opts: Any = None) -> Any:
        """Gives each rank a part of a tensor: as many rows as splits say, or equally many."""
        to, source = movable(output), movable(tensor)
        arriving = lengths(to, output_splits, self.size(), "output_split_sizes")
        leaving = lengths(source, input_splits, self.size(), "input_split_sizes")
        return self._do("all_to_all", opts, [tensor], [output], lambda: into(
            to, lambda all_of_it: self.communicator.all_to_all(
                source.contiguous(), all_of_it, None, leaving, arriving)))

    def alltoall(self, outputs: Tensors, tensors: Tensors, opts: Any = None) -> Any:
        """Gives each rank a tensor, and takes one of each, of any lengths."""
        to = [movable(output) for output in outputs]
        sources = [movable(tensor) for tensor in tensors]
        leaving = [source.numel() for source in sources]
        arriving = [output.numel() for output in to]
        return self._do("all_to_all", opts, tensors, outputs, lambda: into_all(
            to, lambda flat: self.communicator.all_to_all(
                joined(sources), flat, None, leaving, arriving)))

    def barrier(self, opts: Any = None) -> Any:
        """Ends when all ranks have come."""
        return keep(self._do("barrier", opts, [], [], self.communicator.barrier))

    def monitored_barrier(self, timeout: Optional[timedelta] = None,
                          wait_all_ranks: bool = False) -> None:
        """A barrier that says which ranks did not come within `timeout`: rank 0 all of them with
        `wait_all_ranks`, else the first; the others what rank 0 said."""
        self._barriers.wait(timeout.total_seconds() if timeout else self._timeout, wait_all_ranks)

    # Messages.

    def send(self, tensors: Tensors, destination: int, tag: int) -> Any:
        """Sends a tensor. The Work ends when it may be written again: docs/pytorch.md says when."""
        tensor = plain(one(tensors, "send")).cpu()  # messages go through the memory of hosts
        work = TuttiWork(tensors, is_message=True)
        show = shown("send", [tensor], lambda _: None)

        def end(error: Optional[BaseException]) -> None:
            show(error)
            work.end(error)

        self._mailbox.send(tensor, destination, tag, end)
        return keep(work)

    def recv(self, tensors: Tensors, source: int, tag: int) -> Any:
        """Receives a tensor that is as long as the one that was sent."""
        tensor = plain(one(tensors, "recv"))
        whole = tensor if tensor.is_contiguous() and not tensor.is_cuda else torch.empty_like(
            tensor, memory_format=torch.contiguous_format, device="cpu")
        work = TuttiWork(tensors, is_message=True)

        copy = _gpu.later([tensor], lambda: tensor.copy_(whole), "messages")

        def take(error: Optional[BaseException]) -> None:
            if error is None and whole is not tensor:
                copy()

        show = shown("recvAnySource" if source == ANY else "recv", [tensor], take)

        def end(error: Optional[BaseException]) -> None:
            try:
                show(error)
            except BaseException as failed:  # everything: somebody waits
                error = failed
            work.end(error)

        wanted = self._mailbox.recv(whole, source, tag, end)
        work.sender = lambda: wanted.sender
        return work

    def recv_anysource(self, tensors: Tensors, tag: int) -> Any:
        """The same of whoever sends first: source_rank() of the Work says who did."""
        return self.recv(tensors, ANY, tag)

    # The names that newer versions of PyTorch have for some of the above.

    all_gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base
    gather_into_tensor = gather_single
    recvAnysource = recv_anysource
