"""Tables of embeddings."""

from __future__ import annotations

import sys
from typing import Any, Callable, Dict, Optional, Union

import numpy

from tutti._core import ps as core
from tutti._types import Array
from tutti.errors import InvalidArgument
from tutti.ps import _arrays
from tutti._checks import check_kind, flag, one_of, text, whole

_INT64 = numpy.dtype(numpy.int64)

Rule = Union[core.Sgd, core.Momentum, core.Adagrad, core.Adam]
Initial = Union[core.Constant, core.Uniform, core.Normal]
Entry = Union[core.AdmitAll, core.Probability, core.CountFilter, core.ShowClick]

RULES = (core.Sgd, core.Momentum, core.Adagrad, core.Adam)


def check_rule(optimizer: Any) -> None:
    """Raises TypeError if it is no update rule, nor None."""
    if optimizer is not None:
        check_kind("optimizer", optimizer, RULES)


class Embedding:
    """A table of rows by int64 ids, which lies on the servers. Alike on all workers and servers.

    name, dim: what it is called, and the float32 elements of a row.
    optimizer: Sgd, Momentum, Adagrad or Adam; by default Sgd(), or what
        fleet.distributed_optimizer() was given.
    init: Uniform, Normal or Constant. What a row is before its first push is a function of the
        seed, the table, the id and the column, so lookups create nothing.
    dict_size: ids are below it, and not negative; by default they are any number.
    entry: which ids get a row: AdmitAll, Probability, CountFilter or ShowClick.
    evict: which rows go again.
    padding_idx: an id that reads as zeros and is never pushed; with dict_size it is below it, and
        may be negative.
    consistent_rows: a lookup that meets a row in the middle of an update tries again, for a
        millisecond or more, and then reads it as it is, and counts it (torn_rows in stats());
        otherwise only elements are whole.
    split: "hash", or "mod": the id modulo the number of servers, as Paddle has it.

    It is of use once ps.start(), or Paddle's fleet.init_worker(), has got it, on workers. A copy of
    it, as in copies of a model, is itself; a pickle is its description, of no worker.
    """

    def __init__(
        self,
        name: str,
        dim: int,
        *,
        optimizer: Optional[Rule] = None,
        init: Initial = core.Uniform(),
        dict_size: Optional[int] = None,
        entry: Entry = core.AdmitAll(),
        evict: core.Evict = core.Evict(),
        padding_idx: Optional[int] = None,
        consistent_rows: bool = False,
        split: str = "hash",
    ) -> None:
        text("name", name)
        check_rule(optimizer)
        check_kind("init", init, (core.Uniform, core.Normal, core.Constant))
        check_kind("entry", entry, (core.AdmitAll, core.Probability, core.CountFilter,
                                    core.ShowClick))
        check_kind("evict", evict, (core.Evict,))
        consistent_rows = flag("consistent_rows", consistent_rows)
        dim = whole("dim", dim, 1, 2**31 - 1)
        limit = 0 if dict_size is None else whole("dict_size", dict_size, 1, 2**63 - 1)
        if padding_idx is not None:
            padding_idx = whole("padding_idx", padding_idx, -2**63, 2**63 - 1)
            if dict_size is not None and padding_idx >= dict_size:
                raise InvalidArgument(f"padding_idx is {padding_idx}, but must be below dict_size, "
                                      f"{dict_size}")
        one_of("split", split, tuple(core.Split.__members__))
        self.name = name
        self.dim = dim
        self.optimizer = optimizer
        self.padding_idx = padding_idx
        self._rest = (init, entry, evict, limit, padding_idx, split, consistent_rows)
        self._fleet: Optional[core.Fleet] = None
        self._number = -1
        self._join: Optional[Callable[[], object]] = None
        self._results = _arrays.Recycled()

    def __repr__(self) -> str:
        return f"<tutti.ps.Embedding {self.name}: rows of {self.dim}>"

    def spec(self, rule: Rule) -> core.TableSpec:
        """What servers are told; `rule` is for a table without an optimizer."""
        init, entry, evict, limit, padding_idx, split, consistent_rows = self._rest
        return core.TableSpec(self.name, self.dim, self.optimizer or rule, init, entry, evict, limit,
                              padding_idx, core.Split.__members__[split], consistent_rows)

    def __deepcopy__(self, memo: Dict[int, Any]) -> Embedding:
        return self  # copies of a model share its tables, which lie on the servers

    def __copy__(self) -> Embedding:
        return self

    def __getstate__(self) -> Dict[str, Any]:
        what_it_is = dict(self.__dict__)
        del what_it_is["_results"]
        return {**what_it_is, "_fleet": None, "_number": -1, "_join": None}  # of no worker

    def __setstate__(self, state: Dict[str, Any]) -> None:
        self.__dict__.update(state, _results=_arrays.Recycled())

    @property
    def is_bound(self) -> bool:
        """Whether a worker's part of a fleet has it."""
        return self._fleet is not None

    def bind(self, fleet: Optional[core.Fleet]) -> None:
        """Ties it to a worker's part of a fleet, or to none."""
        self._number = -1 if fleet is None else fleet.table(self.name)
        self._fleet = fleet
        self._join = None

    def join_at_first_use(self, join: Callable[[], object]) -> None:
        """What makes it a worker's, when it is of use for the first time."""
        self._join = join

    def _bound(self) -> core.Fleet:
        if self._fleet is None and self._join is not None:
            self._join()
        if self._fleet is None:
            raise InvalidArgument(f"table {self.name} is of no worker: ps.start() gets it among its "
                                  "tables, and it is of use on workers, until they stop")
        return self._fleet

    def lookup(self, ids: Array, out: Optional[Array] = None) -> Any:
        """The rows of ids, which may come twice and have any shape: an array of ids.shape + (dim,),
        NumPy's or PyTorch's as ids is, or `out`, float32 in CPU memory. Blocks."""
        fleet = self._fleet or self._bound()
        # A look-up leaves the caches without this code: each line counts.
        if type(ids) is numpy.ndarray and ids.dtype is _INT64 and ids.flags.c_contiguous:
            rows = self._results.empty((*ids.shape, self.dim)) if out is None else out
            if type(rows) is numpy.ndarray and rows.shape == (*ids.shape, self.dim):
                fleet.lookup(self._number, ids, rows)
                return rows
        torch: Any = sys.modules.get("torch")
        if torch is not None and type(ids) is torch.Tensor and ids.is_cpu:
            try:  # without an array of NumPy's for each tensor, whose code is not in the caches either
                if out is None:
                    return torch.from_dlpack(fleet.lookup_dlpack(self._number, ids, self.dim))
                if getattr(out, "shape", None) == (*ids.shape, self.dim):
                    fleet.lookup(self._number, ids, out)
                    return out
            except (InvalidArgument, TypeError):
                pass  # of another type or layout, or refused below, too
        memory = _arrays.ids_of(ids)
        shape = (*memory.shape, self.dim)
        if out is None:
            rows = self._results.empty(shape)
            fleet.lookup(self._number, memory, rows)
            return _arrays.like(rows, ids)
        fleet.lookup(self._number, memory, _arrays.writable(out, "out", shape))
        return out

    def prefetch(self, ids: Array) -> None:
        """Ids that a lookup will ask for soon: their rows begin to travel if they are on another
        host. Does not block."""
        self._bound().prefetch(self._number, _arrays.ids_of(ids))

    def push(self, ids: Array, gradients: Array, *, shows: Optional[Array] = None,
             clicks: Optional[Array] = None) -> None:
        """Adds gradients, of shape ids.shape + (dim,), to the batch; those of one id are added up.
        shows and clicks, one an id, are for rules of entry and eviction that want them. Copies."""
        fleet = self._bound()
        memory = _arrays.ids_of(ids)
        rows = _arrays.floats_of(gradients, "gradients", (*memory.shape, self.dim))
        shown = None if shows is None else _arrays.floats_of(shows, "shows", memory.shape)
        clicked = None if clicks is None else _arrays.floats_of(clicks, "clicks", memory.shape)
        fleet.push(self._number, memory, rows, shown, clicked)
