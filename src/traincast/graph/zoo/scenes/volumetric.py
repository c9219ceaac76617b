"""U-Nets for medical volumes and slices, and for defects on surfaces: nnU-Net, V-Net, TinyUNet."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from traincast.errors import RequestError
from traincast.graph.zoo.parts.convolution import cross_entropy
from traincast.graph.zoo.parts.layers import check_sizes
from traincast.graph.zoo.traceable import Traceable

_CONV: Final = {2: nn.Conv2d, 3: nn.Conv3d}
_TRANSPOSED: Final = {2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
_INSTANCE_NORM: Final = {2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d}


def sides(family: str, size: str, *, levels: int) -> tuple[int, ...]:
    """The sides of ``192x160`` or ``128x128x128``, each of which must be halved ``levels`` times.

    >>> sides("nnunet", "192x160", levels=5)
    (192, 160)
    """
    texts = str(size).split("x")
    if len(texts) not in _CONV or not all(text.isdecimal() for text in texts):
        raise RequestError(f"{family}: size={size!r} must be two or three sides, such as 192x160 or 128x128x128")
    found = tuple(map(int, texts))
    for side in found:
        if side < 2 ** (levels + 1) or side % 2**levels:
            raise RequestError(
                f"{family}: side {side} of size={size} cannot be halved {levels} times: choose multiples of "
                f"{2**levels}, at least {2 ** (levels + 1)}"
            )
    return found


def dice(probabilities: Tensor) -> Tensor:
    """One minus the mean Dice overlap ``2 Σpt / (Σp + Σt)`` per class, with some one-hot targets ``t``.

    ``probabilities`` are ``[batch, classes, ...]``; sums run over the batch and all positions (Milletari et al. 2016).
    """
    targets = torch.empty_like(probabilities)
    dims = (0, *range(2, probabilities.ndim))
    overlap = (probabilities * targets).sum(dim=dims)
    total = probabilities.sum(dim=dims) + targets.sum(dim=dims)
    return 1 - (2 * overlap / total).mean()


def dice_and_cross_entropy(outputs: tuple[Tensor, ...]) -> Tensor:
    """Dice plus cross-entropy of each output, whose weight is halved from one to the next coarser."""
    losses = [dice(logits.softmax(dim=1)) + cross_entropy(logits) for logits in outputs]
    total: Tensor = sum((loss * 0.5**index for index, loss in enumerate(losses[1:], start=1)), start=losses[0])
    return total


def _traceable(
    module: nn.Module, shape: tuple[int, ...], *, loss: Callable[[Any], Tensor], optimizer: str = "adam"
) -> Traceable:
    """A network that reads ``[batch, *shape]``, channels first."""

    def images(batch: int) -> tuple[Tensor, ...]:
        like = next(module.parameters())
        return (torch.empty((batch, *shape), dtype=like.dtype, device=like.device),)

    return Traceable(module=module, inputs=images, loss=loss, optimizer=optimizer)


def _conv_pair(dims: int, inputs: int, outputs: int, *, stride: int = 1) -> nn.Sequential:
    """Two convolutions of 3, each with instance normalisation and leaky ReLU; the first may stride."""
    layers = []
    for channels, step in ((inputs, stride), (outputs, 1)):
        layers += [
            _CONV[dims](channels, outputs, 3, stride=step, padding=1, bias=False),
            _INSTANCE_NORM[dims](outputs, affine=True),
            nn.LeakyReLU(0.01),
        ]
    return nn.Sequential(*layers)


class Up(nn.Module):  # type: ignore[misc]
    """Double the size by a transposed convolution, join the features of the way down, convolve twice."""

    def __init__(self, dims: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.up = _TRANSPOSED[dims](inputs, outputs, 2, stride=2)
        self.conv = _conv_pair(dims, 2 * outputs, outputs)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        """``x`` of ``[batch, inputs, ...]`` to ``[batch, outputs, ...]`` of the size of ``skip``."""
        return self.conv(torch.cat([self.up(x), skip], dim=1))


class NNUNet(nn.Module):  # type: ignore[misc]
    """A plain U-Net that halves by strided convolutions (Isensee et al. 2021, nnU-Net).

    In training, ``supervised`` coarser outputs have a head too and are enlarged to the full size.
    """

    def __init__(
        self, dims: int, *, channels: int, classes: int, widths: list[int], supervised: int, head_kernel: int
    ) -> None:
        super().__init__()
        self.stem = _conv_pair(dims, channels, widths[0])
        self.down = nn.ModuleList(
            _conv_pair(dims, inputs, outputs, stride=2) for inputs, outputs in itertools.pairwise(widths)
        )
        rising = widths[::-1]
        self.up = nn.ModuleList(Up(dims, inputs, outputs) for inputs, outputs in itertools.pairwise(rising))
        self.head = _CONV[dims](widths[0], classes, head_kernel, padding=head_kernel // 2)
        self.coarse = nn.ModuleList(_CONV[dims](width, classes, 1) for width in widths[1 : supervised + 1])

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Images to logits ``[batch, classes, ...]`` of their size: the output, then the supervised ones."""
        size = x.shape[2:]
        x = self.stem(x)
        skips = []
        for down in self.down:
            skips.append(x)
            x = down(x)
        decoded = []
        for up in self.up:
            x = up(x, skips.pop())
            decoded.append(x)
        outputs = [self.head(x)]
        for head, features in zip(self.coarse, decoded[-2::-1], strict=False):
            outputs.append(functional.interpolate(head(features), size=size))
        return tuple(outputs)


def nnunet(
    *,
    size: str = "128x128x128",
    channels: int = 4,
    classes: int = 4,
    width: int = 32,
    max_width: int = 320,
    levels: int = 5,
    supervised: int = 0,
    head_kernel: int = 1,
) -> Traceable:
    """nnU-Net (Isensee et al. 2021) for slices (``size`` 192x160) or volumes (``size`` 128x128x128).

    The size is halved ``levels`` times while the width doubles up to ``max_width``.
    """
    sizes = {"channels": channels, "classes": classes, "width": width, "max_width": max_width}
    check_sizes("nnunet", sizes | {"levels": levels, "head_kernel": head_kernel})
    check_sizes("nnunet", {"supervised": supervised}, may_be_zero=frozenset({"supervised"}))
    shape = sides("nnunet", size, levels=levels)
    if supervised >= levels:
        raise RequestError(f"nnunet: supervised={supervised} of levels={levels}; it must be less than levels")
    if head_kernel % 2 == 0:
        raise RequestError(f"nnunet: head_kernel={head_kernel} must be odd, so that the output keeps its size")
    widths = [min(width * 2**level, max_width) for level in range(levels + 1)]
    with torch.device("meta"):
        module = NNUNet(
            len(shape),
            channels=channels,
            classes=classes,
            widths=widths,
            supervised=supervised,
            head_kernel=head_kernel,
        )
    return _traceable(module, (channels, *shape), loss=dice_and_cross_entropy)


def _conv_norm(conv: nn.Module, outputs: int) -> nn.Sequential:
    return nn.Sequential(conv, nn.BatchNorm3d(outputs), nn.ReLU())


class ResidualStage(nn.Module):  # type: ignore[misc]
    """``depth`` convolutions that keep size and width, with one shortcut around all of them."""

    def __init__(self, width: int, *, kernel: int, depth: int) -> None:
        super().__init__()
        self.convs = nn.Sequential(
            *(_conv_norm(nn.Conv3d(width, width, kernel, padding=kernel // 2), width) for _ in range(depth))
        )

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, width, d, h, w]`` to the same shape."""
        return self.convs(x) + x


class VNet(nn.Module):  # type: ignore[misc]
    """Residual stages on the way down and up (Milletari et al. 2016), as NVIDIA trains it.

    Against the paper: ReLU for PReLU, and the finest features are not joined at the end.
    """

    def __init__(self, *, channels: int, classes: int, width: int, levels: int, depth: int, kernel: int) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(levels + 1)]
        self.stem = _conv_norm(nn.Conv3d(channels, width, kernel, padding=kernel // 2), width)
        self.shrink = nn.ModuleList(_conv_norm(nn.Conv3d(w // 2, w, 2, stride=2), w) for w in widths[1:])
        self.down = nn.ModuleList(ResidualStage(w, kernel=kernel, depth=depth) for w in widths[1:])
        rising = widths[-2:0:-1]
        coarser = [widths[-1], *(2 * w for w in rising)]
        self.grow = nn.ModuleList(
            _conv_norm(nn.ConvTranspose3d(inputs, w, 2, stride=2), w)
            for inputs, w in zip(coarser, [*rising, width], strict=True)
        )
        self.up = nn.ModuleList(ResidualStage(2 * w, kernel=kernel, depth=depth) for w in rising)
        self.head = nn.Conv3d(width, classes, kernel, padding=kernel // 2)

    def forward(self, x: Tensor) -> Tensor:
        """Volumes ``[batch, channels, d, h, w]`` to logits ``[batch, classes, d, h, w]``."""
        x = self.stem(x) + x
        skips = []
        for shrink, stage in zip(self.shrink, self.down, strict=True):
            x = stage(shrink(x))
            skips.append(x)
        skips.pop()
        *grows, last = self.grow
        for grow, stage in zip(grows, self.up, strict=True):
            x = stage(torch.cat([grow(x), skips.pop()], dim=1))
        return self.head(last(x))


def vnet(
    *,
    size: str = "32x32x32",
    channels: int = 1,
    classes: int = 3,
    width: int = 16,
    levels: int = 3,
    depth: int = 3,
    kernel: int = 3,
) -> Traceable:
    """V-Net (Milletari et al. 2016), with ``depth`` convolutions in each stage of ``levels`` halvings."""
    sizes = {"channels": channels, "classes": classes, "width": width, "levels": levels}
    check_sizes("vnet", sizes | {"depth": depth, "kernel": kernel})
    shape = sides("vnet", size, levels=levels)
    if len(shape) != 3 or channels not in (1, width):
        raise RequestError(
            f"vnet: size={size} must have three sides, and channels={channels} must be 1 or width={width}"
        )
    with torch.device("meta"):
        module = VNet(channels=channels, classes=classes, width=width, levels=levels, depth=depth, kernel=kernel)
    return _traceable(module, (channels, *shape), loss=lambda logits: dice(logits.softmax(dim=1)))


def _conv_relu(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU())


def _enlarge(inputs: int, outputs: int) -> nn.Sequential:
    """Nearest-neighbour doubling, then a 2x2 convolution padded on one side to keep the size."""
    return nn.Sequential(
        nn.Upsample(scale_factor=2), nn.ZeroPad2d((0, 1, 0, 1)), nn.Conv2d(inputs, outputs, 2), nn.ReLU()
    )


class TinyUNet(nn.Module):  # type: ignore[misc]
    """A U-Net without normalisation whose widths are ``width`` times 1, 1, 2, 4 and 8."""

    def __init__(self, *, channels: int, classes: int, width: int) -> None:
        super().__init__()
        widths = [width, width, 2 * width, 4 * width]
        self.down = nn.ModuleList(
            nn.Sequential(_conv_relu(inputs, outputs), _conv_relu(outputs, outputs))
            for inputs, outputs in zip([channels, *widths[:-1]], widths, strict=True)
        )
        self.pool = nn.MaxPool2d(2)
        bottom = 8 * width
        self.bottom = nn.Sequential(
            _conv_relu(widths[-1], bottom), _conv_relu(bottom, bottom), _enlarge(bottom, bottom // 2)
        )
        entering = [bottom // 2, *(w // 2 for w in widths[:1:-1])]
        self.up = nn.ModuleList(
            nn.Sequential(_conv_relu(inputs + w, w), _conv_relu(w, w // 2), _enlarge(w // 2, w // 2))
            for inputs, w in zip(entering, widths[:0:-1], strict=True)
        )
        self.head = nn.Sequential(
            _conv_relu(widths[1] // 2 + width, width), _conv_relu(width, width), nn.Conv2d(width, classes, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Images to logits ``[batch, classes, h, w]``."""
        skips = []
        for block in self.down:
            skips.append(block(x))
            x = self.pool(skips[-1])
        x = self.bottom(x)
        for block in self.up:
            x = block(torch.cat([x, skips.pop()], dim=1))
        return self.head(torch.cat([x, skips.pop()], dim=1))


def _mask_loss(logits: Tensor) -> Tensor:
    """Dice plus binary cross-entropy of a mask."""
    probabilities = logits.sigmoid()
    return dice(probabilities) + functional.binary_cross_entropy(probabilities, torch.empty_like(probabilities))


def unet_industrial(*, channels: int = 1, classes: int = 1, width: int = 32, resolution: int = 512) -> Traceable:
    """NVIDIA's TinyUNet for surface defects, after Ronneberger et al. 2015.

    Its optimizer, centred RMSProp with momentum, keeps three states per parameter; here Adam's two.
    """
    check_sizes("unet-industrial", {"channels": channels, "classes": classes, "width": width})
    shape = sides("unet-industrial", f"{resolution}x{resolution}", levels=4)
    with torch.device("meta"):
        module = TinyUNet(channels=channels, classes=classes, width=width)
    return _traceable(module, (channels, *shape), loss=_mask_loss)
