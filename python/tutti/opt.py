"""SINGA's optimisers: SGD, Adam, AdamW and Adagrad, and DistOpt, which averages gradients over all
ranks."""

from __future__ import annotations

from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Tuple,
    Union,
)

from tutti import _core, _identity, _torch  # _identity refuses another package's __init__.py
from tutti._core import (
    SGD,
    Adagrad,
    Adam,
    AdamW,
    Bucket,
    Communicator,
    Event,
    NcclIdHolder,
    Optimizer,
    Site,
    Stream,
)
from tutti._types import Array, Emit, State
from tutti.errors import InvalidArgument

__all__ = ["MODES", "SGD", "Adagrad", "Adam", "AdamW", "Bucket", "Compressor", "DistOpt", "Mode",
           "Optimizer", "Site"]

_THRESHOLD = 2097152  # SINGA's


class Mode(NamedTuple):
    """A way to keep the ranks in step: the method of DistOpt, and which of DistOpt's arguments
    it reads."""

    method: str
    options: Tuple[str, ...]


MODES: Dict[str, Mode] = {name: Mode(*row) for name, row in _core.modes.items()}
"""What DistOpt's dist_option may be: fp32, fp16, bf16, partialUpdate, sparseTopK, sparseThreshold."""


class Compressor:
    """How gradients travel in DistOpt.backward_and_custom_update: a base for classes of yours.

    DistOpt(..., compressor=YourClass) makes one by YourClass(site): site.communicator is that of
    the ranks, site.elements the size of the memory of all gradients, of which buckets are
    stretches. All ranks call the methods for the same buckets in the same order; later buckets may
    be encoded and exchanged before an earlier one is decoded, so each has a packet of its own.
    bucket.gradients is a float32 array of that stretch, which starts at bucket.begin, with
    bucket.elements elements of gradients and zeros between gradients.
    """

    def begin(self) -> None:
        """A step begins, and nothing is under way."""

    def encode(self, bucket: Bucket) -> Tuple[int, int]:
        """Makes the packet of a bucket; how many elements of it travel, and how many bytes."""
        raise NotImplementedError

    def exchange(self, bucket: Bucket, stream: Optional[Stream]) -> Event:
        """Starts its collectives on `stream`, which is None where they are to block; the Event of
        the last. The stream is only good until this returns."""
        raise NotImplementedError

    def decode(self, bucket: Bucket) -> None:
        """The packets of all ranks have arrived: writes their average to bucket.gradients."""
        raise NotImplementedError

    def state(self) -> State:
        """What is kept from step to step, of this rank, as part of DistOpt.state(): arrays are
        float32, as long as site.elements and in the order of that memory."""
        return {"arrays": {}, "numbers": {}}

    def load_state(self, state: State) -> None:
        """Goes on from a state()."""
        if state["arrays"] or state["numbers"]:
            raise InvalidArgument(f"the state is of a compressor that keeps something, and "
                                  f"{_name_of(self)} does not")


def _name_of(thing: Any) -> str:
    """A thing's type for a message: "int", "torch.optim.adam.Adam"."""
    kind = type(thing)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _is_array(thing: Any) -> bool:
    protocols = ("__array_interface__", "__cuda_array_interface__", "__dlpack__")
    return any(hasattr(thing, protocol) for protocol in protocols)


def _backward_of(loss: Any) -> Callable[[Emit], None]:
    """What calls emit(param, grad) for each pair that `loss` stands for."""
    if _torch.is_loss(loss):
        return _torch.backward_of(loss)
    wanted = "an iterable of (param, grad), or a PyTorch scalar that requires grad"
    if _is_array(loss):  # its rows are no pairs, even where there are two numbers in each
        shape = getattr(loss, "shape", None)
        of_shape = "" if shape is None else f" of shape {tuple(shape)}"
        raise TypeError(f"loss is a {_name_of(loss)}{of_shape}, but must be {wanted}")
    try:
        pairs = iter(loss)
    except TypeError:
        raise TypeError(f"loss is a {_name_of(loss)}, but must be {wanted}") from None

    def run(emit: Emit) -> None:
        for pair in pairs:
            try:
                if not isinstance(pair, tuple) and _is_array(pair):
                    raise TypeError
                param, grad = pair
            except (TypeError, ValueError):
                raise TypeError(
                    f"loss must yield pairs (param, grad), not a {_name_of(pair)}"
                ) from None
            emit(param, grad)

    return run


class DistOpt(_core.DistOpt):
    """Averages the gradients of all ranks, then lets the wrapped optimiser update the parameters.

    DistOpt(sgd) joins the ranks that a launcher has started; DistOpt(sgd, nccl_id, local_rank,
    world_size) joins processes of this host that hold the same ticket; DistOpt(sgd,
    communicator=c) uses a communicator that the caller goes on using. The first two block until
    all ranks have come.

    All methods are collective unless they say otherwise: all ranks call them in the same order.
    Parameters are float32 in CPU memory, or all on one GPU. What stands for `loss` is an iterable
    of (param, grad), usually a generator: it is consumed as it yields, and gradients travel in
    buckets while later ones are still being computed. No parameter is written before it is
    exhausted. On a GPU a gradient is kept until the step has ended; unless it was made on the GPU's
    default stream, its memory is to be left alone until then. A PyTorch loss (a scalar tensor that
    requires grad) is one, too: gradients go out as loss.backward() makes them, and .grad of its
    parameters starts from nothing.

    The first pass lays out the buckets and fixes the order; every later pass yields the same
    parameters in the same order. An exception inside a pass leaves everything as it was if no
    bucket was sent, otherwise the communicator is aborted and the other ranks get PeerLost.

    dist_option: what dist(loss) does: a name of MODES, which says by which method; with clipping,
        clip_Value, spars and corr. By default "fp32", or, with compressor, "custom", which is
        backward_and_custom_update.
    compressor: makes what gradients go through there; see Compressor.
    buffSize: the most elements that travel as one message, unless a single gradient is larger.
    half: in which type the half methods travel: "float16" or "bfloat16".
    missing_as_zero: a parameter that a pass leaves out counts as a zero gradient.
    momentum_correction, clip_norm, warm_up_epochs, epoch_steps: for sparse updates, after Deep
        Gradient Compression (Lin et al., ICLR 2018): the momentum that is applied before the
        selection (the optimiser then has none); the norm to which each gradient is clipped, over
        sqrt(world_size); and the number of epochs, of epoch_steps steps each, in which the
        density of topK falls to spars.
    timeout: seconds that any wait may last; TUTTI_TIMEOUT, or else 300.
    """

    def __init__(
        self,
        opt: Optional[Optimizer] = None,
        nccl_id: Optional[NcclIdHolder] = None,
        local_rank: Optional[int] = None,
        world_size: Optional[int] = None,
        buffSize: int = 4194304,
        *,
        communicator: Optional[Communicator] = None,
        dist_option: Optional[str] = None,
        clipping: bool = False,
        clip_Value: float = 100,
        spars: float = 0.05,
        corr: bool = True,
        half: str = "float16",
        missing_as_zero: bool = False,
        momentum_correction: float = 0.0,
        clip_norm: float = 0.0,
        warm_up_epochs: int = 0,
        epoch_steps: int = 0,
        compressor: Optional[Callable[[Site], Compressor]] = None,
        timeout: Optional[float] = None,
    ) -> None:
        if opt is not None and not isinstance(opt, Optimizer):
            raise TypeError(f"opt is a {_name_of(opt)}, but must be a tutti.opt.SGD, Adam, AdamW or "
                            "Adagrad, the optimisers that DistOpt works with")
        if communicator is not None and not isinstance(communicator, Communicator):
            raise TypeError(f"communicator is a {_name_of(communicator)}, but must be a "
                            "tutti.Communicator")
        if buffSize < 1:
            raise InvalidArgument(f"buffSize is {buffSize}, but must be at least 1")
        ticket = (nccl_id, local_rank, world_size)
        if communicator is None:
            if nccl_id is not None and local_rank is not None and world_size is not None:
                communicator = Communicator(local_rank, world_size, nccl_id, timeout=timeout)
            elif any(value is not None for value in ticket):
                raise InvalidArgument(
                    "nccl_id, local_rank and world_size are given together, or none of them"
                )
            else:
                communicator = Communicator(timeout=timeout)
        elif any(value is not None for value in (*ticket, timeout)):
            raise InvalidArgument("with communicator, nccl_id, local_rank, world_size and timeout "
                                  "must not be given")
        if compressor is not None and not callable(compressor):
            raise TypeError(f"compressor is a {_name_of(compressor)}, but must be a class, or what "
                            "else makes a Compressor when it is called with a Site")
        if dist_option is None:
            dist_option = "fp32" if compressor is None else "custom"
        opt = SGD() if opt is None else opt
        super().__init__(
            opt,
            communicator,
            min(buffSize, _THRESHOLD),
            missing_as_zero,
            half,
            momentum_correction,
            clip_norm,
            warm_up_epochs,
            epoch_steps,
            dist_option,
            spars,
            corr,
            clipping,
            clip_Value,
            compressor,
        )
        self.opt = opt
        self.buffSize = buffSize

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return self.communicator.world_size

    @property
    def global_rank(self) -> int:
        """This rank among all."""
        return self.communicator.global_rank

    @property
    def local_rank(self) -> int:
        """This rank among those of its host."""
        return self.communicator.local_rank

    def register_parameters(
        self, parameters: Iterable[Union[Array, Tuple[str, Array]]]
    ) -> List[Any]:
        """Once, before the first pass: the parameters, or pairs (name, parameter), in the model's
        order, as model.named_parameters() has them.

        Gives every rank the values of rank 0, lays out the buckets, and returns one float32 array a
        parameter in which the model may write its gradients: what it then yields is not copied.
        Collective and blocking.
        """
        wanted = "an iterable of arrays, or of pairs (name, array)"
        if callable(getattr(parameters, "named_parameters", None)):
            wanted += ": pass its named_parameters()"
        elif isinstance(parameters, Mapping):
            wanted += ": pass model.named_parameters(), or the items() of what is to be trained"
        elif isinstance(parameters, Iterable) and not _is_array(parameters):
            return super().register_parameters(parameters)
        raise TypeError(f"parameters is a {_name_of(parameters)}, but must be {wanted}")

    def __call__(self, loss: Any, threshold: int = _THRESHOLD) -> None:
        """One step as dist_option says: backward_and_update(loss), unless it was given."""
        self._step(_backward_of(loss), self._bucket(threshold))

    def backward_and_update(self, loss: Any, threshold: int = _THRESHOLD) -> None:
        """One step in full precision: averages the gradients, updates, counts a step.

        Blocks until all parameters are updated. threshold: about how many elements of gradients
        travel as one message (a single gradient may be larger); the same on all ranks.
        """
        self._update(_backward_of(loss), self._bucket(threshold))

    def backward_and_update_half(
        self,
        loss: Any,
        threshold: int = _THRESHOLD,
        clipping: bool = False,
        clip_Value: float = 100,
    ) -> None:
        """The same with 16 bits an element on the wire: gradients are divided by world_size,
        rounded, and summed in float32. With clipping, finite elements are first limited to
        [-clip_Value, clip_Value]."""
        self._update_half(_backward_of(loss), self._bucket(threshold), clipping, clip_Value)

    def backward_and_partial_update(self, loss: Any, threshold: int = _THRESHOLD) -> None:
        """Every rank updates all parameters with its own gradients; then one partition of the
        parameters is averaged over the ranks, each step the next one.

        The first such step cuts the partitions, of about `threshold` elements. The replicas
        differ in between: synchronize() before they are evaluated or saved.
        """
        self._partial_update(_backward_of(loss), self._bucket(threshold))

    def backward_and_sparse_update(
        self,
        loss: Any,
        threshold: int = _THRESHOLD,
        spars: float = 0.05,
        topK: bool = False,
        corr: bool = True,
    ) -> None:
        """Sends a few elements of the gradients, and averages these: with topK the fraction
        `spars` of largest magnitude, otherwise those of magnitude `spars` and above. With corr,
        what is not sent is kept and added to the next gradients."""
        self._sparse_update(_backward_of(loss), self._bucket(threshold), spars, topK, corr)

    def backward_and_custom_update(self, loss: Any, threshold: int = _THRESHOLD) -> None:
        """Sends the gradients through the compressor that DistOpt was given."""
        self._custom_update(_backward_of(loss), self._bucket(threshold))

    def _bucket(self, threshold: int) -> int:
        return min(threshold, self.buffSize)
