import os
from types import TracebackType
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    List,
    Literal,
    Optional,
    Sequence,
    Tuple,
    Type,
    Union,
    overload,
)

import numpy
import numpy.typing as npt

from tutti import _core_ps
from tutti._types import Array, Emit, State

__version__: str

ps = _core_ps

_Op = Literal[
    "sum", "average", "min", "max", "product", "band", "bor", "bxor", "land", "lor", "lxor"
]

_Backward = Callable[[Emit], None]

backends: str

def close_all(error: Optional[BaseException]) -> None: ...
def gpu_count() -> int: ...
def launched_by() -> str: ...
def mpi_library() -> str: ...

class NcclIdHolder:
    def __init__(self) -> None: ...
    @staticmethod
    def parse(text: str) -> NcclIdHolder: ...
    def text(self) -> str: ...
    def __hash__(self) -> int: ...

ANY_SOURCE: int
ANY_TAG: int

class Received:
    @property
    def source(self) -> int: ...
    @property
    def tag(self) -> int: ...

class Send:
    def __init__(self, array: Array, destination: int, tag: int = 0) -> None: ...
    @property
    def array(self) -> Any: ...
    @property
    def destination(self) -> int: ...
    @property
    def tag(self) -> int: ...

class Recv:
    def __init__(self, array: Array, source: int, tag: int = 0) -> None: ...
    @property
    def array(self) -> Any: ...
    @property
    def source(self) -> int: ...
    @property
    def tag(self) -> int: ...
    @property
    def received(self) -> Optional[Received]: ...

class Event:
    @property
    def received(self) -> Optional[Received]: ...
    def ready(self) -> bool: ...
    def wait(self) -> None: ...

class Stream:
    def __init__(self) -> None: ...
    def synchronize(self) -> None: ...

class DeviceArray:
    @property
    def shape(self) -> Tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def __cuda_array_interface__(self) -> Dict[str, Any]: ...
    def __dlpack_device__(self) -> Tuple[int, int]: ...
    def __dlpack__(
        self,
        *,
        stream: Optional[int] = None,
        max_version: Optional[Tuple[int, int]] = None,
        dl_device: Optional[Tuple[int, int]] = None,
        copy: Optional[bool] = None,
    ) -> Any: ...

class Communicator:
    @overload
    def __init__(self, *, timeout: Optional[float] = None) -> None: ...
    @overload
    def __init__(
        self,
        local_rank: int,
        world_size: int,
        id: NcclIdHolder,
        *,
        timeout: Optional[float] = None,
    ) -> None: ...
    @staticmethod
    def from_mpi(comm: Any, *, timeout: Optional[float] = None) -> Communicator: ...
    @staticmethod
    def from_endpoints(
        endpoints: Union[str, Iterable[str]], trainer_id: int, *, timeout: Optional[float] = None
    ) -> Communicator: ...
    @property
    def global_rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def local_rank(self) -> int: ...
    @property
    def local_size(self) -> int: ...
    @property
    def device(self) -> str: ...
    def describe(self) -> str: ...
    @overload
    def empty(
        self,
        shape: Union[int, Sequence[int]],
        dtype: npt.DTypeLike = "float32",
        *,
        device: Literal["cpu"] = "cpu",
    ) -> npt.NDArray[Any]: ...
    @overload
    def empty(
        self, shape: Union[int, Sequence[int]], dtype: Any = "float32", *, device: Any = "cpu"
    ) -> Union[npt.NDArray[Any], DeviceArray]: ...
    def split(self, color: int, key: int = 0) -> Optional[Communicator]: ...
    def group(self, ranks: Sequence[int]) -> Communicator: ...
    def lateness(self) -> List[float]: ...
    def abort(self, reason: str) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Communicator: ...
    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None: ...
    def all_reduce(
        self,
        array: Array,
        out: Optional[Array] = None,
        op: _Op = "sum",
        factor: Optional[float] = None,
        stream: Optional[Stream] = None,
    ) -> Event: ...
    def reduce(
        self,
        array: Array,
        root: int = 0,
        out: Optional[Array] = None,
        op: _Op = "sum",
        factor: Optional[float] = None,
        stream: Optional[Stream] = None,
    ) -> Event: ...
    def scan(
        self,
        array: Array,
        out: Optional[Array] = None,
        op: _Op = "sum",
        factor: Optional[float] = None,
        stream: Optional[Stream] = None,
    ) -> Event: ...
    def exscan(
        self,
        array: Array,
        out: Optional[Array] = None,
        op: _Op = "sum",
        factor: Optional[float] = None,
        stream: Optional[Stream] = None,
    ) -> Event: ...
    def gather(
        self,
        array: Array,
        out: Optional[Array] = None,
        root: int = 0,
        counts: Optional[Sequence[int]] = None,
        stream: Optional[Stream] = None,
    ) -> Event: ...
    def scatter(
        self,
        array: Optional[Array],
        out: Array,
        root: int = 0,
        counts: Optional[Sequence[int]] = None,
        stream: Optional[Stream] = None,
    ) -> Event: ...
    def broadcast(self, array: Array, root: int = 0, stream: Optional[Stream] = None) -> Event: ...
    def all_gather(
        self,
        array: Array,
        out: Array,
        counts: Optional[Sequence[int]] = None,
        stream: Optional[Stream] = None,
    ) -> Event: ...
    def reduce_scatter(
        self,
        array: Array,
        out: Array,
        op: _Op = "sum",
        factor: Optional[float] = None,
        stream: Optional[Stream] = None,
        counts: Optional[Sequence[int]] = None,
    ) -> Event: ...
    def all_to_all(
        self,
        array: Array,
        out: Array,
        stream: Optional[Stream] = None,
        leaving: Optional[Sequence[int]] = None,
        arriving: Optional[Sequence[int]] = None,
    ) -> Event: ...
    def send(
        self, array: Array, destination: int, tag: int = 0, stream: Optional[Stream] = None
    ) -> Event: ...
    def recv(
        self, array: Array, source: int, tag: int = 0, stream: Optional[Stream] = None
    ) -> Event: ...
    def exchange(
        self, messages: Iterable[Union[Send, Recv]], stream: Optional[Stream] = None
    ) -> Event: ...
    def barrier(self, stream: Optional[Stream] = None) -> Event: ...

class Optimizer:
    lr: float

class SGD(Optimizer):
    def __init__(
        self,
        lr: float = 0.1,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None: ...
    momentum: float
    @property
    def dampening(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...
    @property
    def nesterov(self) -> bool: ...

class Adam(Optimizer):
    def __init__(
        self,
        lr: float = 0.001,
        betas: Tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None: ...
    betas: Tuple[float, float]
    @property
    def eps(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...

class AdamW(Adam):
    def __init__(
        self,
        lr: float = 0.001,
        betas: Tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None: ...

class Adagrad(Optimizer):
    def __init__(
        self,
        lr: float = 0.01,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
    ) -> None: ...
    @property
    def lr_decay(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...
    @property
    def initial_accumulator_value(self) -> float: ...
    @property
    def eps(self) -> float: ...

modes: Dict[str, Tuple[str, Tuple[str, ...]]]

class Site:
    @property
    def communicator(self) -> Communicator: ...
    @property
    def elements(self) -> int: ...

class Bucket:
    @property
    def begin(self) -> int: ...
    @property
    def elements(self) -> int: ...
    @property
    def gradients(self) -> Any: ...
    @gradients.setter
    def gradients(self, values: Array) -> None: ...

class DistOpt:
    def __init__(
        self,
        opt: Optimizer,
        communicator: Communicator,
        bucket_elements: int,
        missing_as_zero: bool,
        half: str,
        momentum: float,
        clip_norm: float,
        warm_up_epochs: int,
        epoch_steps: int,
        dist_option: str,
        spars: float,
        corr: bool,
        clipping: bool,
        clip_value: float,
        compressor: Optional[Callable[[Site], Any]],
    ) -> None: ...
    @property
    def communicator(self) -> Communicator: ...
    @property
    def bytes_per_step(self) -> int: ...
    def register_parameters(
        self,
        parameters: Iterable[Union[Array, Tuple[str, Array]]],
        traits: Sequence[Tuple[int, str]] = ...,
    ) -> List[Any]: ...
    def _step(self, backward: _Backward, threshold: int) -> None: ...
    def _update(self, backward: _Backward, threshold: int) -> None: ...
    def _update_half(
        self, backward: _Backward, threshold: int, clipping: bool, clip_value: float
    ) -> None: ...
    def _partial_update(self, backward: _Backward, threshold: int) -> None: ...
    def _sparse_update(
        self, backward: _Backward, threshold: int, spars: float, top_k: bool, corr: bool
    ) -> None: ...
    def _custom_update(self, backward: _Backward, threshold: int) -> None: ...
    def synchronize(self) -> None: ...
    def all_reduce(self, tensor: Array) -> None: ...
    def all_reduce_half(self, tensor: Array) -> None: ...
    def fused_all_reduce(self, tensor: Iterable[Array], send: bool = True) -> None: ...
    def fused_all_reduce_half(self, tensor: Iterable[Array], send: bool = True) -> None: ...
    def sparsification(
        self, tensor: Array, accumulation: Optional[Array], spars: float, topK: bool
    ) -> None: ...
    def fused_sparsification(
        self, tensor: Iterable[Array], accumulation: Optional[Array], spars: float, topK: bool
    ) -> None: ...
    def wait(self) -> None: ...
    def update(self, param: Array, grad: Array) -> None: ...
    def step(self) -> None: ...
    def state(self) -> State: ...
    def load_state(self, state: State) -> None: ...
    def statistics(self) -> Dict[str, float]: ...

class BucketAverage:
    def __init__(
        self,
        communicator: Communicator,
        counts: Sequence[int],
        like: Array,
        mode: str,
        *,
        spars: float = 0.05,
        corr: bool = True,
        clipping: bool = False,
        clip_Value: float = 100,
        momentum_correction: float = 0.0,
        clip_norm: float = 0.0,
        warm_up_epochs: int = 0,
        epoch_steps: int = 0,
    ) -> None: ...
    def average(self, gradients: Array, steps: int) -> None: ...
    def state(self) -> State: ...
    def load_state(self, state: State) -> None: ...

class Store:
    def __init__(self, communicator: Communicator) -> None: ...
    def set(self, key: str, value: Union[bytes, bytearray, memoryview, npt.NDArray[Any]]) -> None: ...
    def get(self, key: str, timeout: Optional[float] = None) -> bytes: ...
    def pop(self, key: str, timeout: Optional[float] = None) -> bytes: ...
    def add(self, key: str, delta: int) -> int: ...
    def close(self) -> None: ...

class Timeline:
    def __init__(
        self, path: Union[str, os.PathLike[str]], communicator: Optional[Communicator] = None
    ) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Timeline: ...
    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None: ...
