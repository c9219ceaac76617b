"""The training loop of all networks: FI-Net and its rivals."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from traincast.errors import RequestError
from traincast.estimate.operators.network import Network

_BATCH_OF_TWO: Final = 2


class Examples(NamedTuple):
    """Training examples: the features of each row, and the log of its time over the baseline."""

    flat: npt.NDArray[np.float32]
    tiles: npt.NDArray[np.float32]
    categories: npt.NDArray[np.float32]
    target: npt.NDArray[np.float64]

    def take(self, rows: npt.NDArray[Any]) -> Examples:
        """Some of the rows."""
        return Examples(*(column[rows] for column in self))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """Settings of a training; Huber's loss turns from squared to absolute at an error of ``beta``."""

    epochs: int = 40
    batch: int = 256
    rate: float = 3e-3
    decay: float = 0.02
    beta: float = 0.05
    average: float = 0.998


def train_network(
    examples: Examples,
    *,
    size: dict[str, Any] | None = None,
    config: TrainConfig | None = None,
    seed: int = 0,
    threads: int = 1,
    progress: Callable[[int, int, float], None] | None = None,
) -> Network:
    """Train a network of ``size`` (fields of :class:`traincast.fitting.operators.fi_net.NetConfig`) on ``examples``.

    Uses AdamW with a one-cycle learning rate. Returns the running average of the weights, which generalises better than
    the last weights. ``progress`` is called with the epoch, the number of epochs and the training loss.
    """
    try:
        import torch
    except ImportError as error:
        raise RequestError("training a network needs PyTorch: pip install 'traincast[torch]'") from error
    from torch.nn.functional import smooth_l1_loss

    from traincast.fitting.operators.fi_net import FINet, NetConfig

    if len(examples.target) < _BATCH_OF_TWO:
        raise RequestError(f"a network needs at least {_BATCH_OF_TWO} operators, and has {len(examples.target)}")
    config = config or TrainConfig()
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    scale = _scale(examples)
    smooth = int(scale["kept"][-(size or {}).get("smooth", 0) :].sum()) if (size or {}).get("smooth") else 0
    shape = NetConfig(
        **{
            **(size or {}),
            "smooth": smooth,
            "flat": int(scale["kept"].sum()),
            "length": examples.tiles.shape[1],
            "channels": examples.tiles.shape[2],
            "categories": examples.categories.shape[1],
        }
    )
    flat, tiles = _scaled(examples, scale)
    columns = [torch.from_numpy(np.ascontiguousarray(x)) for x in (flat, tiles, examples.categories)]
    target = torch.from_numpy(examples.target.astype(np.float32))
    model = FINet(shape)
    with torch.no_grad():
        model.out.bias.fill_(float(np.median(examples.target)))
    averaged = copy.deepcopy(model)
    batch = min(config.batch, max(_BATCH_OF_TWO, len(target) // 4))
    steps = len(target) // batch
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.rate, weight_decay=config.decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, config.rate, total_steps=max(1, config.epochs * steps), pct_start=0.15
    )
    done = 0
    for epoch in range(config.epochs):
        order = torch.randperm(len(target), generator=generator)
        total = 0.0
        for i in range(steps):
            rows = order[i * batch : (i + 1) * batch]
            loss = smooth_l1_loss(model(*(x[rows] for x in columns)), target[rows], beta=config.beta)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            done += 1
            keep = min(config.average, done / (done + 10.0))
            with torch.no_grad():
                torch._foreach_lerp_(list(averaged.parameters()), list(model.parameters()), 1.0 - keep)
            total += float(loss.detach())
        if progress is not None:
            progress(epoch + 1, config.epochs, total / max(1, steps))
    weights = {name: p.detach().numpy().copy() for name, p in averaged.named_parameters()}
    return Network(config={**asdict(shape), "modes": list(shape.modes)}, weights=weights, scale=scale)


def _scale(examples: Examples) -> dict[str, npt.NDArray[Any]]:
    spread = examples.flat.std(axis=0)
    kept = spread > 1e-6
    return {
        "kept": kept,
        "flat_mean": examples.flat[:, kept].mean(axis=0),
        "flat_std": spread[kept],
        "tile_mean": examples.tiles.mean(axis=0),
        "tile_std": examples.tiles.std(axis=0) + np.float32(1e-3),
    }


def _scaled(
    examples: Examples, scale: dict[str, npt.NDArray[Any]]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    flat = (examples.flat[:, scale["kept"]] - scale["flat_mean"]) / scale["flat_std"]
    tiles = np.clip((examples.tiles - scale["tile_mean"]) / scale["tile_std"], -5, 5)
    return flat.astype(np.float32), tiles.astype(np.float32)
