"""Which server has which block of the dense parameters."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, Iterable, List, Optional, Sequence, Type

from tutti._core import ps as core
from tutti.errors import InvalidArgument
from tutti._checks import flag, whole


class _Name(str):
    """A name that Paddle's dispatchers ask for as var.name()."""

    def __call__(self) -> str:
        return str(self)


class Variable:
    """A block, as a dispatcher sees it: name (or name()), and count, its elements."""

    def __init__(self, block: core.Block) -> None:
        self.name = _Name(block.name)
        self.count = block.count


class PSDispatcher:
    """Chooses servers for blocks: a base for classes of yours, made with the servers' endpoints.

    dispatch() is called for each parameter in turn, on all workers and servers, which compare what
    it chose. Servers without endpoints are called "server 0" and so on.
    """

    def __init__(self, pserver_endpoints: Sequence[str]) -> None:
        self._eps = list(pserver_endpoints)
        self._step = 0

    @property
    def eps(self) -> List[str]:
        """The endpoints."""
        return self._eps

    def reset(self) -> None:
        """Begins anew. Called before the first dispatch()."""
        self._step = 0

    def dispatch(self, varlist: Sequence[Variable]) -> List[str]:
        """An endpoint for each of the blocks of a parameter."""
        raise NotImplementedError


class RoundRobin(PSDispatcher):
    """The blocks in turns."""

    def dispatch(self, varlist: Sequence[Variable]) -> List[str]:
        """The next server for each block, the first after the last."""
        chosen = []
        for _ in varlist:
            chosen.append(self._eps[self._step % len(self._eps)])
            self._step += 1
        return chosen


class HashName(PSDispatcher):
    """By a hash of the block's name, which is the same in all processes."""

    def dispatch(self, varlist: Sequence[Variable]) -> List[str]:
        """A server for each block."""
        return [self._eps[core.server_by_name(str(variable.name), len(self._eps))]
                for variable in varlist]


def check_dispatcher(name: str, value: Any) -> None:
    """Raises InvalidArgument if an argument is no class of dispatchers, nor None."""
    if value is not None and not (isinstance(value, type)
                                  and callable(getattr(value, "dispatch", None))
                                  and callable(getattr(value, "reset", None))):
        raise InvalidArgument(f"{name} is {value!r}, but must be a class with dispatch(varlist) and "
                              "reset()")


@dataclasses.dataclass(frozen=True)
class Slicing:
    """How dense parameters are spread over servers: whether they are cut into blocks at all, the
    least elements of a block, and the class that chooses servers for blocks, None: RoundRobin."""

    slice_var_up: bool = True
    min_block_size: int = 8192
    split_method: Optional[Type[PSDispatcher]] = None  # RoundRobin

    def __post_init__(self) -> None:
        flag("slice_var_up", self.slice_var_up)
        whole("min_block_size", self.min_block_size, 1, 2**31 - 1)
        check_dispatcher("split_method", self.split_method)


def choose(slicing: Slicing, parameters: Sequence[core.DenseParameter], servers: int,
           endpoints: Sequence[str]) -> Dict[core.Block, int]:
    """The blocks of parameters, and a server for each."""
    names = list(endpoints) or [f"server {number}" for number in range(servers)]
    blocks = core.slice(parameters, servers, slicing.slice_var_up, slicing.min_block_size)
    method = slicing.split_method or RoundRobin
    dispatcher: Any = method(names)
    dispatcher.reset()
    chosen: Dict[core.Block, int] = {}
    for number in range(len(parameters)):
        of_parameter = [block for block in blocks if block.parameter == number]
        variables = [Variable(block) for block in of_parameter]
        picked: Iterable[Any] = dispatcher.dispatch(variables)
        for block, endpoint in _paired(of_parameter, list(picked), method):
            if endpoint not in names:
                raise InvalidArgument(f"{method.__name__}.dispatch() gave {endpoint!r} "
                                      f"for {block.name}, but the servers are {', '.join(names)}")
            chosen[block] = names.index(endpoint)
    return chosen


def _paired(blocks: List[core.Block], picked: List[Any],
            method: Type[PSDispatcher]) -> Any:
    if len(picked) != len(blocks):
        raise InvalidArgument(f"{method.__name__}.dispatch() gave {len(picked)} "
                              f"endpoints for {len(blocks)} blocks")
    return zip(blocks, picked)
