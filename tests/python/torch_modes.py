"""What docs/numerics.md says of the modes, for tests of PyTorch's gradients: on one process, with
PyTorch's own operations."""

from torch_group import torch

WIRES = {"fp16": torch.float16, "bf16": torch.bfloat16}


class Given(torch.nn.Module):
    """A model whose gradients are what it is called with."""

    def __init__(self, shapes, dtype=torch.float32):
        super().__init__()
        self.parts = torch.nn.ParameterList(
            [torch.nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in shapes])

    def forward(self, gradients):
        return sum((part * gradient).sum() for part, gradient in zip(self.parts, gradients)
                   if gradient is not None)


def gradients(step, rank, shapes, seed=0):
    """Of a rank; no two magnitudes are alike."""
    random = torch.Generator().manual_seed(1000 * seed + 10 * step + rank)
    return [torch.randn(shape, generator=random) for shape in shapes]


class Alone:
    """Averages flat gradients as ranks do in a mode, whose buckets are all of them."""

    def __init__(self, ranks, mode, spars=0.05, corr=True, clipping=False, clip_Value=100,
                 momentum_correction=0.0, clip_norm=0.0, warm_up_epochs=0, epoch_steps=1):
        self.ranks, self.mode, self.spars, self.corr = ranks, mode, spars, corr
        self.limit = clip_Value if clipping else None
        self.momentum, self.clip_norm = momentum_correction, clip_norm
        self.warm_up_epochs, self.epoch_steps = warm_up_epochs, epoch_steps
        self.residual = [0.0] * ranks
        self.velocity = [0.0] * ranks
        self.steps = 0

    def average(self, parts):
        """parts[rank] is the list of a rank's gradients; the average, flat."""
        if self.mode == "fp32":
            return sum(torch.cat([p.flatten() for p in of_rank]) for of_rank in parts) / self.ranks
        if self.mode in WIRES:
            sent = []
            for of_rank in parts:
                flat = torch.cat([p.flatten() for p in of_rank])
                if self.limit is not None:
                    flat = flat.clamp(-self.limit, self.limit)
                sent.append((flat * torch.tensor(1 / self.ranks)).to(WIRES[self.mode]).float())
            return sum(sent).to(WIRES[self.mode]).float()
        total = sum(self.sent(rank, of_rank) for rank, of_rank in enumerate(parts))
        self.steps += 1
        return total / self.ranks

    def sent(self, rank, parts):
        if self.clip_norm:
            most = self.clip_norm / self.ranks ** 0.5
            parts = [p * min(1.0, most / p.double().norm().item()) for p in parts]
        flat = torch.cat([p.flatten() for p in parts])
        if self.momentum:
            self.velocity[rank] = flat = self.velocity[rank] * self.momentum + flat
        candidates = self.residual[rank] + flat
        if self.mode == "sparseTopK":
            epoch, spars = self.steps // self.epoch_steps, self.spars
            if epoch < self.warm_up_epochs:
                spars = spars ** ((epoch + 1) / (self.warm_up_epochs + 1))
            chosen = torch.zeros_like(flat, dtype=torch.bool)
            chosen[candidates.abs().topk(int(-(-spars * len(flat) // 1))).indices] = True
        else:
            chosen = candidates.abs() >= self.spars
        if self.corr:
            self.residual[rank] = torch.where(chosen, 0.0, candidates)
        if self.momentum:
            self.velocity[rank] = torch.where(chosen, 0.0, flat)
        return torch.where(chosen, candidates, 0.0)


MODES = [("fp32", {}), ("fp16", {}), ("fp16", {"clipping": True, "clip_Value": 0.5}), ("bf16", {}),
         ("sparseTopK", {"spars": 0.1}), ("sparseTopK", {"spars": 0.3, "corr": False}),
         ("sparseTopK", {"spars": 0.1, "momentum_correction": 0.9, "clip_norm": 1.5}),
         ("sparseTopK", {"spars": 0.02, "warm_up_epochs": 2, "epoch_steps": 2}),
         ("sparseThreshold", {"spars": 0.8}),
         ("sparseThreshold", {"spars": 2.0, "momentum_correction": 0.9})]
