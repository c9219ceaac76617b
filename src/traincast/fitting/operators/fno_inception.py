"""FNO-Inception: Fourier layers with different numbers of modes side by side, so that no one number must be chosen.

A Fourier layer (Li et al., "Fourier neural operator", 2021) multiplies the lowest modes of a sequence by learned
complex matrices. A layer with few modes follows slow changes along the sequence, one with many modes follows edges. The
Inception module (Szegedy et al., 2015; swPredictor for operator times) runs several such layers beside a pointwise
path, and mixes their outputs.

Sequences are tensors of [position, sample, channel], so that every step is one large matrix product.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from traincast.estimate.operators.network import fourier_matrices


class SpectralMix(nn.Module):
    """Multiplies the lowest modes of a sequence by learned complex matrices.

    ``branches`` lists (channels, modes): the first branch mixes the first channels, the next branch the next ones.
    """

    def __init__(self, length: int, branches: tuple[tuple[int, int], ...]) -> None:
        super().__init__()
        self.branches = branches
        most = max(modes for _, modes in branches)
        if most > length // 2 + 1:
            raise ValueError(f"{most} modes: a sequence of {length} has at most {length // 2 + 1}")
        analysis, synthesis = fourier_matrices(length, most)
        self.register_buffer("analysis", torch.from_numpy(analysis), persistent=False)
        self.register_buffer("synthesis", torch.from_numpy(synthesis), persistent=False)
        self.weights = nn.ParameterList(
            nn.Parameter(torch.randn(modes, 2, width, width) / width) for width, modes in branches
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x`` [position, sample, channel] with its modes mixed, in the same shape."""
        length, batch, channels = x.shape
        most = self.analysis.shape[0] // 2
        spectrum = (self.analysis @ x.reshape(length, -1)).view(2, most, batch, channels)
        mixed = []
        start = 0
        for (width, modes), weight in zip(self.branches, self.weights, strict=True):
            real, imaginary = spectrum[:, :modes, :, start : start + width]
            a, b = weight[:, 0], weight[:, 1]
            product = torch.stack([real @ a - imaginary @ b, real @ b + imaginary @ a])
            mixed.append(nn.functional.pad(product, (0, 0, 0, 0, 0, most - modes)))
            start += width
        return (self.synthesis @ torch.cat(mixed, dim=-1).reshape(2 * most, -1)).view(length, batch, channels)


class FNOInception(nn.Module):
    """Parallel Fourier branches and a pointwise path, mixed and added to the input."""

    def __init__(self, width: int, length: int, modes: tuple[int, ...]) -> None:
        super().__init__()
        if width % len(modes):
            raise ValueError(f"{width} channels do not divide among {len(modes)} branches")
        self.enter = nn.Linear(width, width)
        self.spectral = SpectralMix(length, tuple((width // len(modes), m) for m in modes))
        self.pointwise = nn.Linear(width, width)
        self.mix = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """``x`` [position, sample, channel], refined."""
        return x + self.mix(torch.relu(self.spectral(self.enter(x)) + self.pointwise(x)))


class ConvInception(nn.Module):
    """The same module with convolutions of different widths in place of Fourier branches; a rival of FI-Net."""

    def __init__(self, width: int, length: int, kernels: tuple[int, ...]) -> None:
        super().__init__()
        if width % len(kernels) or not all(k % 2 for k in kernels):
            raise ValueError(
                f"{width} channels, kernel widths {kernels}: expected odd widths whose number divides the channels"
            )
        self.enter = nn.Linear(width, width)
        part = width // len(kernels)
        self.branches = nn.ModuleList(nn.Conv1d(part, part, k, padding=k // 2) for k in kernels)
        self.pointwise = nn.Linear(width, width)
        self.mix = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """``x`` [position, sample, channel], refined."""
        parts = self.enter(x).permute(1, 2, 0).chunk(len(self.branches), dim=1)
        seen = torch.cat([branch(part) for branch, part in zip(self.branches, parts, strict=True)], dim=1)
        return x + self.mix(torch.relu(seen.permute(2, 0, 1) + self.pointwise(x)))
