"""Paddle's DistributeTranspilerConfig."""

from __future__ import annotations

from typing import Any, Dict, Optional, Type, Union

from tutti._core import ps as core
from tutti.errors import InvalidArgument
from tutti._checks import flag, one_of, whole
from tutti.ps._dispatch import PSDispatcher, Slicing, check_dispatcher

# What Paddle has, and why any other value is refused.
_FIXED: Dict[str, Any] = {
    "enable_dc_asgd": (False, "gradients are not corrected for their delay: Async(staleness=k) "
                              "bounds it instead"),
    "completely_not_async": (False, "that is sync_mode=True"),
    "nccl_comm_num": (1, "one communicator carries all gradients"),
    "use_hierarchical_allreduce": (False, "sums are hierarchical wherever there are several hosts"),
    "hierarchical_allreduce_inter_nranks": (0, "sums are hierarchical wherever there are several "
                                               "hosts"),
}
_MODES = ("pserver", "nccl2", "collective")
_COLLECTIVE_MODES = (None, "grad_allreduce")
_FLAGS = ("slice_var_up", "sync_mode", "half_async", "geo_sgd_mode", "wait_port", "print_log",
          "runtime_split_send_recv")
_COUNTS = ("min_block_size", "geo_sgd_need_push_nums")
# What is for servers, and sync_mode, of which transpile() has an argument.
_OF_SERVERS = ("slice_var_up", "split_method", "min_block_size", "half_async", "geo_sgd_mode",
               "geo_sgd_need_push_nums", "wait_port", "print_log")


class DistributeTranspilerConfig:
    """Paddle's options, as attributes. What has no effect here is refused, with the reason, when
    it is set.

    slice_var_up: whether large parameters are cut into blocks for several servers.
    split_method: RoundRobin, HashName, or another PSDispatcher; None is RoundRobin.
    min_block_size: the least elements of a block.
    mode: "pserver", or "nccl2" or "collective", which have no servers: a DistOpt.
    sync_mode, half_async, geo_sgd_mode, geo_sgd_need_push_nums: the mode of a parameter server;
        geo_sgd_mode comes first; half_async goes with sync_mode=False, here or in transpile(), and
        without any of them it is asynchronous.
    runtime_split_send_recv: either; gradients are always split where they are sent.
    collective_mode: None or "grad_allreduce".
    wait_port: whether get_trainer_program() waits for the servers, or the first step or use of an
        Embedding does.
    print_log: whether the log says which server has which block.
    """

    def __init__(self) -> None:
        self.slice_var_up = True
        self.split_method: Optional[Type[PSDispatcher]] = None
        self.min_block_size = 8192
        self.mode = "pserver"
        self.sync_mode = True
        self.half_async = False
        self.geo_sgd_mode = False
        self.geo_sgd_need_push_nums = 100
        self.collective_mode: Optional[str] = None
        self.wait_port = True
        self.print_log = False
        self.runtime_split_send_recv = False
        for name, (value, _) in _FIXED.items():
            super().__setattr__(name, value)
        self._complete = True

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(self, "_complete") and not hasattr(self, name):
            raise AttributeError(f"DistributeTranspilerConfig has no option {name!r}")
        if name in _FIXED and value != _FIXED[name][0]:
            raise InvalidArgument(f"{name} is {value!r}, but must be {_FIXED[name][0]!r}: "
                                  f"{_FIXED[name][1]}")
        if name in _FLAGS:
            value = flag(name, value)
        if name in _COUNTS:
            value = whole(name, value, 1, 2**31 - 1)
        if name == "mode":
            one_of(name, value, _MODES)
        if name == "collective_mode" and value not in _COLLECTIVE_MODES:
            raise InvalidArgument(f"collective_mode is {value!r}, but must be 'grad_allreduce': "
                                  "DistOpt(dist_option='partialUpdate') has local steps")
        if name == "split_method":
            check_dispatcher(name, value)
        super().__setattr__(name, value)

    def slicing(self) -> Slicing:
        """How dense parameters are spread over servers."""
        return Slicing(bool(self.slice_var_up), self.min_block_size, self.split_method)

    def check_no_servers(self) -> None:
        """Raises InvalidArgument if an option is set that is for servers."""
        defaults = DistributeTranspilerConfig()
        for name in _OF_SERVERS:
            value = getattr(self, name)
            if value != getattr(defaults, name):
                raise InvalidArgument(f"{name} is {value!r}, but mode {self.mode!r} has no servers")

    def mode_of(self, sync_mode: bool) -> Union[core.Sync, core.Async, core.HalfAsync, core.Geo]:
        """The mode of a parameter server."""
        if self.geo_sgd_mode:
            return core.Geo(self.geo_sgd_need_push_nums)
        if sync_mode:
            if self.half_async:
                raise InvalidArgument("half_async is True, but sync_mode is, too: one of them must "
                                      "be False")
            return core.Sync()
        return core.HalfAsync() if self.half_async else core.Async()
