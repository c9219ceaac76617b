"""Train a graph inspector, from nothing or from one that was trained in another setting."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from traincast.errors import RequestError
from traincast.estimate.inspector.amounts import Floats
from traincast.estimate.inspector.communities import Ints
from traincast.estimate.inspector.evaluate import InspectorShape, Standard, TrainedInspector
from traincast.estimate.inspector.features import GROUP_FEATURES, SETTING_FEATURES, Inputs
from traincast.estimate.inspector.targets import Scaling, TargetScale
from traincast.fitting.inspector.scores import UseColumns

if TYPE_CHECKING:
    import torch

    from traincast.fitting.inspector.network import Inspector

FEWEST_RUNS: Final = 8
_SMALLEST_BATCH: Final = 8
_STEPS_PER_EPOCH: Final = 12
"""Few runs are taken in smaller batches, so that an epoch still has about this many steps."""
_LARGEST: Final = 6.0
"""How far from the mean a scaled target counts: values far outside are no example to learn from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunExamples:
    """Runs to learn from: the input of each, and its figures."""

    inputs: Sequence[Inputs]
    uses: UseColumns

    def __len__(self) -> int:
        return len(self.inputs)

    def take(self, rows: Ints) -> RunExamples:
        """Some of the runs."""
        return RunExamples(inputs=[self.inputs[i] for i in rows.tolist()], uses=self.uses.take(rows))

    @property
    def references(self) -> Floats:
        """The reference value of each figure, by which it is divided: [runs, 12]."""
        return np.stack([one.reference for one in self.inputs])


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectorTraining:
    """How an inspector is trained: AdamW with a one-cycle rate; the weights are a running average.

    ``members`` networks are trained one after the other from different first weights, and their outputs are averaged.
    ``patterns`` weighs the loss of the patterns against that of the figures. Huber's loss turns from squared to
    absolute at ``beta``. An adapted inspector is held near the one that it starts from: the squared distance of its
    weights from there costs ``anchor`` over the number of runs, so that few runs move it little. After each epoch,
    ``watch`` is called with the epoch and the inspector so far, and training stops if it returns True.
    """

    members: int = 1
    epochs: int = 60
    batch: int = 64
    rate: float = 6e-3
    decay: float = 0.01
    beta: float = 0.3
    patterns: float = 0.15
    average: float = 0.99
    anchor: float = 4.0
    scaling: Scaling = "log"
    seed: int = 0
    threads: int = 1
    watch: Callable[[int, TrainedInspector], bool] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """Examples of equal depth, padded to the largest: the arguments of :meth:`Inspector.forward`, and the targets."""

    x: torch.Tensor
    adjacency: torch.Tensor
    mask: torch.Tensor
    setting: torch.Tensor
    target: torch.Tensor
    pattern: torch.Tensor
    state: torch.Tensor | None = None

    def take(self, rows: Ints) -> _Batch:
        """Some of the examples."""
        columns = {name: getattr(self, name) for name in _Batch.__slots__}
        return _Batch(**{name: None if column is None else column[rows] for name, column in columns.items()})


def train(
    examples: RunExamples,
    *,
    shape: InspectorShape | None = None,
    config: InspectorTraining | None = None,
    start: TrainedInspector | None = None,
    late: float = 0.5,
    whole: bool = False,
) -> TrainedInspector:
    """Train an inspector of ``shape``, or adapt ``start`` to a new setting.

    An adapted inspector keeps φ_f, the first steps of φ_r and the read-out. Its last ``late`` (a share) of the steps of
    φ_r get weights of their own, which are trained together with the head; with ``whole``, everything is trained. All
    members of ``start`` are adapted.
    """
    try:
        import torch
    except ImportError as error:
        raise RequestError("training an inspector needs PyTorch: pip install 'traincast[torch]'") from error
    from traincast.fitting.inspector.network import Inspector

    config = config or InspectorTraining()
    if len(examples) < FEWEST_RUNS:
        raise RequestError(f"{len(examples)} runs to learn from: an inspector needs at least {FEWEST_RUNS}")
    torch.set_num_threads(config.threads)
    if start is None:
        shape = shape or default_shape()
        standard = _standard(examples)
        scale = TargetScale.of(examples.uses.values, examples.references, config.scaling)
    else:
        shape = start.shape if start.shape.late or whole else replace(start.shape, late=late)
        standard, scale = start.standard, start.scale
    made = TrainedInspector(shape=shape, weights={}, standard=standard, scale=scale)
    trained = []
    for member in range(config.members if start is None else len(start.members)):
        seeded = replace(config, seed=config.seed + member)
        torch.manual_seed(seeded.seed)
        network = Inspector(shape)
        data = _Data(examples, made, seeded)
        if start is not None:
            _load(network, replace(start, weights=start.members[member], more=()))
            if not whole:
                _freeze(network)
                data.remember(network)
        anchor = config.anchor / len(examples) if start is not None else 0.0
        trained.append(_arrays(_fit(network, data, seeded, made, anchor=anchor)))
    return replace(made, weights=trained[0], more=tuple(trained[1:]))


def default_shape(**changes: Any) -> InspectorShape:
    """Return the usual shape of an inspector, with ``changes`` of its fields."""
    return InspectorShape(features=len(GROUP_FEATURES), setting=len(SETTING_FEATURES), **changes)


def _freeze(network: Inspector) -> None:
    """Keep φ_f, the shared steps of φ_r and the read-out as they are."""
    for part in (network.first, network.repeated, network.look):
        for weight in part.parameters() if part is not None else ():
            weight.requires_grad_(requires_grad=False)


def _fit(
    network: Inspector, data: _Data, config: InspectorTraining, made: TrainedInspector, *, anchor: float
) -> Inspector:
    """Run the epochs; return the network with averaged weights."""
    import torch

    averaged = copy.deepcopy(network)
    trained = [weight for weight in network.parameters() if weight.requires_grad]
    first = [weight.detach().clone() for weight in trained]
    optimizer = torch.optim.AdamW(trained, lr=config.rate, weight_decay=config.decay)
    total = config.epochs * data.batches_per_epoch
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, config.rate, total_steps=max(2, total), pct_start=0.15)
    done = 0
    for epoch in range(config.epochs):
        for batch in data.shuffled():
            loss = _loss(network, batch, config)
            if anchor:
                moved = zip(trained, first, strict=True)
                loss = loss + anchor * torch.stack([((now - then) ** 2).sum() for now, then in moved]).sum()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            if done < total - 1:
                schedule.step()
            done += 1
            keep = min(config.average, done / (done + 10.0))
            with torch.no_grad():
                torch._foreach_lerp_(list(averaged.parameters()), list(network.parameters()), 1.0 - keep)
        if config.watch is not None and config.watch(epoch + 1, replace(made, weights=_arrays(averaged))):
            break
    return averaged


def _loss(network: Inspector, batch: _Batch, config: InspectorTraining) -> torch.Tensor:
    import torch
    from torch.nn import functional

    if batch.state is None:
        out = network(batch.x, batch.adjacency, batch.mask, batch.setting)
    else:
        out = network.finish(batch.state, batch.adjacency, batch.mask, batch.setting)
    known = torch.isfinite(batch.target)
    target = torch.nan_to_num(batch.target)
    if config.scaling == "maximum":
        error = (out[:, :12] - target) ** 2
    else:
        error = functional.smooth_l1_loss(out[:, :12], target, beta=config.beta, reduction="none")
    figures = (error * known).sum() / known.sum().clamp(min=1)
    patterns = functional.cross_entropy(out[:, 12:].reshape(-1, 3), batch.pattern.reshape(-1))
    return figures + config.patterns * patterns


class _Data:
    """Examples as tensors, in classes of equal depth; batches of a class are drawn anew for each epoch."""

    def __init__(self, examples: RunExamples, made: TrainedInspector, config: InspectorTraining) -> None:
        self._random = np.random.default_rng(config.seed)
        self._batch = min(config.batch, max(_SMALLEST_BATCH, len(examples) // _STEPS_PER_EPOCH))
        rows_of: dict[int, list[int]] = {}
        for number, one in enumerate(examples.inputs):
            rows_of.setdefault(made.shape.steps(len(one.groups)), []).append(number)
        self._classes = [_padded(examples.take(np.array(rows)), made) for rows in rows_of.values()]

    @property
    def batches_per_epoch(self) -> int:
        """Number of batches in an epoch."""
        return sum(-(-len(whole.x) // self._batch) for whole in self._classes)

    def remember(self, network: Inspector) -> None:
        """Compute the states that frozen layers give once, instead of in every epoch."""
        import torch

        with torch.no_grad():
            self._classes = [
                replace(whole, state=network.early(whole.x, whole.adjacency, whole.setting)) for whole in self._classes
            ]

    def shuffled(self) -> Iterator[_Batch]:
        """The batches of one epoch, in random order."""
        batches = []
        for whole in self._classes:
            order = self._random.permutation(len(whole.x))
            batches += [(whole, order[i : i + self._batch]) for i in range(0, len(order), self._batch)]
        for number in self._random.permutation(len(batches)).tolist():
            whole, rows = batches[number]
            yield whole.take(rows)


def _padded(examples: RunExamples, made: TrainedInspector) -> _Batch:
    """All examples as one batch, padded to the largest."""
    import torch

    inputs, standard = examples.inputs, made.standard
    most = max(len(one.groups) for one in inputs)
    x = np.zeros((len(inputs), most, made.shape.features), dtype=np.float32)
    adjacency = np.zeros((len(inputs), most, most), dtype=np.float32)
    mask = np.zeros((len(inputs), most), dtype=np.float32)
    for number, one in enumerate(inputs):
        size = len(one.groups)
        x[number, :size] = standard.groups(one.groups)
        adjacency[number, :size, :size] = one.adjacency
        mask[number, :size] = 1.0
    targets = made.scale.targets(examples.uses.values, examples.references).clip(-_LARGEST, _LARGEST)
    return _Batch(
        x=torch.from_numpy(x),
        adjacency=torch.from_numpy(adjacency),
        mask=torch.from_numpy(mask),
        setting=torch.from_numpy(np.stack([standard.setting(one.setting) for one in inputs])),
        target=torch.from_numpy(targets.astype(np.float32)),
        pattern=torch.from_numpy(examples.uses.pattern),
    )


def _standard(examples: RunExamples) -> Standard:
    groups = np.concatenate([one.groups for one in examples.inputs])
    setting = np.stack([one.setting for one in examples.inputs])
    return Standard(
        group_mean=groups.mean(axis=0),
        group_size=np.maximum(groups.std(axis=0), np.float32(1e-3)),
        setting_mean=setting.mean(axis=0),
        setting_size=np.maximum(setting.std(axis=0), np.float32(1e-2)),
    )


def _load(network: Inspector, start: TrainedInspector) -> None:
    """Give ``network`` the weights of ``start``; its late steps begin with the shared weights."""
    import torch

    weights = {name: torch.from_numpy(np.array(value)) for name, value in start.weights.items()}
    if network.late is not None and not start.shape.late:
        repeated = {name: value for name, value in weights.items() if name.startswith("repeated.")}
        weights |= {f"late.{name.removeprefix('repeated.')}": value.clone() for name, value in repeated.items()}
    network.load_state_dict(weights)


def _arrays(network: Inspector) -> dict[str, Any]:
    return {name: weight.detach().numpy().copy() for name, weight in network.named_parameters()}
