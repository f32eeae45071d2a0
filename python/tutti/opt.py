"""SINGA's optimisers: SGD, Adam, AdamW and Adagrad, and DistOpt, which averages gradients over all
ranks."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple, cast

from tutti import _core, _identity, _torch, _torch_rest, _torch_rows  # noqa: F401 - _identity refuses another's __init__.py
from tutti import _torch_optimizer as _face
from tutti._checks import integer, whole
from tutti._core import (SGD, Adagrad, Adam, AdamW, Bucket, Communicator, Event, NcclIdHolder,
                         Optimizer, Site, Stream)
from tutti._dist_arguments import check_options, joined
from tutti._losses import backward_of, is_array, name_of
from tutti._torch_parameters import TorchParameters, is_tensor, layout_of
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
                                  f"{name_of(self)} does not")


class DistOpt(_core.DistOpt):
    """Averages the gradients of all ranks, then lets the wrapped optimiser update the parameters.

    DistOpt(sgd) joins the ranks that a launcher has started; DistOpt(sgd, nccl_id, local_rank,
    world_size) joins processes of this host that hold the same ticket; DistOpt(sgd,
    communicator=c) uses a communicator that the caller goes on using. The first two block until
    all ranks have come.

    All methods are collective unless they say otherwise: all ranks call them in the same order.
    Parameters are float32 in CPU memory, or all on one GPU; PyTorch's may also lie in another order
    (channels_last) and be bfloat16 or float16, of which float32 copies are trained. What stands for
    `loss` is an iterable of (param, grad), usually a generator: it is consumed as it yields, and
    gradients travel in buckets while later ones are still being computed. No parameter is written
    before it is exhausted. On a GPU a gradient is kept until the step has ended; unless it was made on
    the GPU's default stream, its memory is to be left alone until then. A PyTorch loss (a scalar
    tensor that requires grad) is one, too: gradients go out as loss.backward() makes them, and .grad of
    its parameters starts from nothing, or from what accumulate() has kept.

    The first pass lays out the buckets and fixes the order; every later pass yields the same
    parameters in the same order, which a PyTorch loss keeps by itself. An exception inside a pass
    leaves everything as it was if no bucket was sent, otherwise the communicator is aborted and the
    other ranks get PeerLost.

    dist_option: what dist(loss) does: a name of MODES, which says by which method; with clipping,
        clip_Value, spars and corr. By default "fp32", or, with compressor, "custom", which is
        backward_and_custom_update.
    compressor: makes what gradients go through there; see Compressor.
    buffSize: the most elements that travel as one message, unless a single gradient is larger.
    half: in which type the half methods travel: "float16" or "bfloat16".
    missing_as_zero: a parameter that a pass leaves out counts as a zero gradient.
    float64_as_float32: float64 parameters of PyTorch are trained in float32 copies, too, which loses
        digits; without, they are refused.
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
        float64_as_float32: bool = False,
        momentum_correction: float = 0.0,
        clip_norm: float = 0.0,
        warm_up_epochs: int = 0,
        epoch_steps: int = 0,
        compressor: Optional[Callable[[Site], Compressor]] = None,
        timeout: Optional[float] = None,
    ) -> None:
        if opt is not None and not isinstance(opt, Optimizer):
            raise TypeError(f"opt is a {name_of(opt)}, but must be a tutti.opt.SGD, Adam, AdamW or "
                            "Adagrad, the optimisers that DistOpt works with")
        buffSize = whole("buffSize", buffSize, 1, 2**63 - 1)
        check_options({
            "clipping": clipping, "clip_Value": clip_Value, "spars": spars, "corr": corr, "half": half,
            "missing_as_zero": missing_as_zero, "float64_as_float32": float64_as_float32,
            "momentum_correction": momentum_correction, "clip_norm": clip_norm,
            "warm_up_epochs": warm_up_epochs, "epoch_steps": epoch_steps,
        })
        if compressor is not None and not callable(compressor):
            raise TypeError(f"compressor is a {name_of(compressor)}, but must be a class, or what "
                            "else makes a Compressor when it is called with a Site")
        if dist_option is None:
            dist_option = "fp32" if compressor is None else "custom"
        check_options({"dist_option": dist_option})
        opt = SGD() if opt is None else opt
        super().__init__(
            opt,
            joined(communicator, nccl_id, local_rank, world_size, timeout),
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
        self._parameters = TorchParameters(float64_as_float32)
        self._group = _face.Group(opt, [])
        self._torch_optimizer: Any = None

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

    def register_parameters(self, parameters: Any, sparse: Iterable[Any] = ()) -> List[Any]:
        """Once, before the first pass: the parameters, or pairs (name, parameter), in the model's
        order; or a model of PyTorch, of which those that require gradients are meant.

        Gives every rank the values of rank 0, lays out the buckets, and returns one float32 array a
        parameter in which the model may write its gradients: what it then yields is not copied. Of a
        model of PyTorch frozen parameters and buffers get those of rank 0, too, here and never again;
        sparse, quantized and meta ones alone stay as they are. MismatchError where they differ in
        name, shape or type. Collective and blocking. Ranks whose parameters differ in shape, or in the
        order in which the axes lie in memory, get a MismatchError that shows the first that does, or
        an InvalidArgument where numbers of elements differ, too.

        sparse: those of the parameters, in CPU memory, of which a pass gives few rows gradients; of
        a model of PyTorch those of Embedding and EmbeddingBag with sparse=True are found. In
        backward_and_update and backward_and_update_half only the rows travel that some rank has,
        unless they are as many as the parameter's; the result is the same. Their arrays are empty. The
        same on all ranks.
        """
        wanted = "an iterable of arrays, or of pairs (name, array), or a model of PyTorch"
        if is_array(sparse) or not isinstance(sparse, Iterable):  # of which the rows would be taken for parameters
            raise TypeError(f"sparse is a {name_of(sparse)}, but must be an iterable of parameters")
        explicit = list(sparse)
        tables = {id(one) for one in explicit}
        rest: _torch_rest.Rest = []
        if callable(getattr(parameters, "named_parameters", None)):
            tables.update(map(id, _torch_rows.tables_of(parameters)))
            rest = _torch_rest.rest_of(parameters)
            _torch_rest.compare(self.communicator, rest)
            of_model = parameters.named_parameters()
            parameters = [(name, one) for name, one in of_model
                          if getattr(one, "requires_grad", True)]
        elif isinstance(parameters, Mapping):
            wanted += ": pass model.named_parameters(), or the items() of what is to be trained"
            raise TypeError(f"parameters is a {name_of(parameters)}, but must be {wanted}")
        elif not isinstance(parameters, Iterable) or is_array(parameters):
            raise TypeError(f"parameters is a {name_of(parameters)}, but must be {wanted}")
        originals, items, names, traits = [], [], [], []
        with self._parameters.registering():
            for number, item in enumerate(parameters):
                named = isinstance(item, tuple) and len(item) == 2
                parameter = item[1] if named else item
                names.append(f"parameter '{item[0]}'" if named else f"parameter #{number}")
                standing = self._parameters.stand_in(parameter, names[-1])
                originals.append(parameter)
                items.append((item[0], standing) if named else standing)
                is_table = id(parameter) in tables
                row = _torch_rows.row_elements_of(parameter, names[-1]) if is_table else 0
                traits.append((row, layout_of(parameter)))
            for number, one in enumerate(explicit):
                if not any(one is other for other in originals):
                    raise InvalidArgument(f"sparse has #{number}, which is not among the parameters")
            gradients = super().register_parameters(items, traits)
        self._parameters.write()
        self._parameters.named = {id(one): (one, name) for one, name in zip(originals, names)}
        self._parameters.registered = [
            one for one in originals if is_tensor(one) and one.requires_grad and one.numel() > 0]
        self._group = _face.Group(self.opt, self._parameters.registered)
        _torch_rest.broadcast(self.communicator, rest)
        return [self._parameters.as_parameter(gradient, parameter)
                for gradient, parameter in zip(gradients, originals)]

    def _train(self, method: Callable[..., None], loss: Any, threshold: int, *options: Any) -> None:
        """One step by `method`."""
        threshold = integer("threshold", threshold)
        backward = backward_of(loss, self._parameters)

        def run(emit: Emit) -> None:
            backward(self._parameters.emitting(emit))

        self._parameters.read()
        method(run, min(threshold, self.buffSize), *options)
        self._parameters.end_step()
        if self._torch_optimizer is not None:
            self._torch_optimizer.note_step()

    def __call__(self, loss: Any, threshold: int = _THRESHOLD) -> None:
        """One step as dist_option says: backward_and_update(loss), unless it was given."""
        self._train(self._step, loss, threshold)

    def backward_and_update(self, loss: Any, threshold: int = _THRESHOLD) -> None:
        """One step in full precision: averages the gradients, updates, counts a step.

        Blocks until all parameters are updated. threshold: about how many elements of gradients
        travel as one message (a single gradient may be larger); the same on all ranks.
        """
        self._train(self._update, loss, threshold)

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
        check_options({"clipping": clipping, "clip_Value": clip_Value})
        self._train(self._update_half, loss, threshold, clipping, clip_Value)

    def backward_and_partial_update(self, loss: Any, threshold: int = _THRESHOLD) -> None:
        """Every rank updates all parameters with its own gradients; then one partition of the
        parameters is averaged over the ranks, each step the next one.

        The first such step cuts the partitions, of about `threshold` elements. The replicas
        differ in between: synchronize() before they are evaluated or saved.
        """
        self._train(self._partial_update, loss, threshold)

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
        check_options({"spars": spars, "topK": topK, "corr": corr})
        self._train(self._sparse_update, loss, threshold, spars, topK, corr)

    def backward_and_custom_update(self, loss: Any, threshold: int = _THRESHOLD) -> None:
        """Sends the gradients through the compressor that DistOpt was given."""
        self._train(self._custom_update, loss, threshold)

    def accumulate(self, loss: Any) -> None:
        """Runs loss.backward() of a PyTorch loss, and keeps the gradients: the next step adds its own
        and averages the sums over the ranks. Divide each loss by their number for a mean. Local."""
        if not _torch.is_loss(loss):
            raise TypeError(f"loss is a {name_of(loss)}, but must be a PyTorch scalar that requires "
                            "grad")
        self._parameters.accumulate(loss)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops what accumulate() has kept, and what registered parameters of PyTorch have in .grad. A
        step does not need it. Local."""
        self._parameters.forget()
        for parameter in self._parameters.registered:
            if set_to_none or parameter.grad is None:
                parameter.grad = None
            else:
                parameter.grad = parameter.grad.detach().zero_()

    def synchronize(self) -> None:
        """Averages all parameters over the ranks, after which they are the same bits: after partial
        updates, before an evaluation. Blocks."""
        self._parameters.read()
        super().synchronize()
        self._parameters.write()

    def update(self, param: Array, grad: Array) -> None:
        """Divides grad, a sum, by world_size, then updates a registered parameter. Local. Refused
        while a sum is under way: wait() first."""
        self._parameters.read()
        super().update(*self._parameters.pair(param, grad))
        self._parameters.write()

    def state(self) -> State:
        """What this rank has to remember besides the parameters: {'arrays': {name: array}, 'numbers':
        {name: float}}. Local."""
        state = super().state()
        masters = self._parameters.masters()
        if masters is not None:
            state["arrays"]["dist.master"] = masters
        return state

    def load_state(self, state: State) -> None:
        """Goes on from a state(), to the bit. Local, once the parameters are registered. Raises
        InvalidArgument, and changes nothing, if it is not of these parameters and this rank."""
        masters = None
        if isinstance(state, dict) and isinstance(state.get("arrays"), dict):
            arrays = dict(state["arrays"])
            masters = arrays.pop("dist.master", None)
            state = cast(State, dict(state, arrays=arrays))
            self._parameters.check_masters(masters)
        super().load_state(state)
        self._parameters.load_masters(masters)

    @property
    def param_groups(self) -> List[Dict[str, Any]]:
        """One dict of the options, as PyTorch's optimisers have it. A new "lr", "betas", or "momentum"
        that is and was not 0, takes effect with the next step; the others cannot change."""
        self._group.refresh()
        return [self._group]

    def state_dict(self) -> Dict[str, Any]:
        """state() and the options, as torch.save() takes them. Local."""
        return _face.state_dict_of(self.state(), self._group)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes on from a state_dict(), to the bit, with its learning rate. Local, once the parameters
        are registered. Raises InvalidArgument, and changes nothing, if it is of others."""
        _face.load(self, state_dict, self._group)

    def torch_optimizer(self) -> Any:
        """A torch.optim.Optimizer that stands for this DistOpt: what PyTorch's schedulers of learning
        rates take. Once a model of PyTorch is registered."""
        if self._torch_optimizer is None:
            self._torch_optimizer = _face.make_optimizer(self, self._group, self._parameters.registered)
        return self._torch_optimizer
