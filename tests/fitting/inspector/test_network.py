"""The inspector: NumPy and PyTorch agree, the order of groups does not matter, and it learns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from traincast import RequestError
from traincast.estimate.inspector.evaluate import InspectorShape, TrainedInspector
from traincast.estimate.inspector.features import Inputs
from traincast.fitting.inspector.fit import predictions
from traincast.fitting.inspector.scores import score
from traincast.fitting.inspector.train import InspectorTraining, RunExamples, default_shape, train

torch = pytest.importorskip("torch")
QUICK = InspectorTraining(epochs=2, batch=16)
SHAPES = [
    {"hidden": 12},
    {"hidden": 12, "layer": "gcn"},
    {"hidden": 12, "read_out": "mean"},
    {"hidden": 12, "depth": 0.0},
]


def outputs_by_torch(made: TrainedInspector, inputs: Inputs) -> np.ndarray:
    """The outputs of the network that is trained, for one graph."""
    from traincast.fitting.inspector.network import Inspector

    network = Inspector(made.shape)
    network.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in made.weights.items()})
    x = torch.from_numpy(made.standard.groups(inputs.groups))[None]
    mask = torch.ones(1, x.shape[1])
    setting = torch.from_numpy(made.standard.setting(inputs.setting))[None]
    found: np.ndarray = network(x, torch.from_numpy(inputs.adjacency)[None], mask, setting).detach().numpy()[0]
    return found


@pytest.mark.parametrize("changes", SHAPES, ids=str)
def test_numpy_gives_what_pytorch_gives(changes: dict[str, object], toy_examples: RunExamples) -> None:
    made = train(toy_examples, shape=default_shape(**changes), config=QUICK)
    for inputs in toy_examples.inputs[:6]:
        assert made.outputs(inputs) == pytest.approx(outputs_by_torch(made, inputs), abs=1e-5)


def test_an_adapted_inspector_gives_the_same_in_numpy(toy_examples: RunExamples) -> None:
    base = train(toy_examples, shape=default_shape(hidden=12), config=QUICK)
    adapted = train(toy_examples, start=base, config=QUICK)
    assert adapted.shape.late == 0.5
    for inputs in toy_examples.inputs[:6]:
        assert adapted.outputs(inputs) == pytest.approx(outputs_by_torch(adapted, inputs), abs=1e-5)


def test_members_are_averaged_and_adapted_one_by_one(toy_examples: RunExamples) -> None:
    shape = default_shape(hidden=12)
    both = train(toy_examples, shape=shape, config=replace(QUICK, members=2))
    single = [train(toy_examples, shape=shape, config=replace(QUICK, seed=seed)) for seed in (0, 1)]
    for inputs in toy_examples.inputs[:3]:
        each = [one.outputs(inputs) for one in single]
        assert not np.allclose(each[0], each[1])
        assert both.outputs(inputs) == pytest.approx(np.mean(each, axis=0), abs=1e-5)
    adapted = train(toy_examples, start=both, config=QUICK)
    assert [set(weights) for weights in adapted.members] == [set(adapted.weights)] * 2
    kept = [weights["first.linear.weight"] for weights in adapted.members]
    assert np.array_equal(kept, [weights["first.linear.weight"] for weights in both.members])


def test_the_order_of_groups_does_not_matter(toy_examples: RunExamples) -> None:
    made = train(toy_examples, shape=default_shape(hidden=12), config=QUICK)
    inputs = toy_examples.inputs[3]
    order = np.random.default_rng(1).permutation(len(inputs.groups))
    mixed = replace(inputs, groups=inputs.groups[order], adjacency=inputs.adjacency[np.ix_(order, order)])
    assert made.outputs(mixed) == pytest.approx(made.outputs(inputs), abs=1e-5)


def test_padding_changes_nothing(toy_examples: RunExamples) -> None:
    from traincast.fitting.inspector.network import Inspector

    shape = default_shape(hidden=12, depth=10.0, most_steps=3)  # as many steps for every size
    network = Inspector(shape)
    x, setting = torch.rand(1, 5, shape.features), torch.rand(1, shape.setting)
    adjacency = torch.eye(5)[None]
    alone = network(x, adjacency, torch.ones(1, 5), setting)
    wide, wide_adjacency = torch.zeros(1, 9, shape.features), torch.zeros(1, 9, 9)
    wide[:, :5], wide_adjacency[:, :5, :5] = x, adjacency
    mask = torch.cat([torch.ones(1, 5), torch.zeros(1, 4)], dim=1)
    padded = network(wide, wide_adjacency, mask, setting)
    assert padded.detach().numpy() == pytest.approx(alone.detach().numpy(), abs=1e-5)


@pytest.mark.long(guard="fitting/inspector/test_fit.py::test_a_fit_is_judged_on_families_it_did_not_see")
def test_training_learns_and_repeats_exactly(toy_examples: RunExamples) -> None:
    config = InspectorTraining(epochs=60, batch=16, seed=3)
    made = train(toy_examples, shape=default_shape(hidden=24), config=config)
    values, patterns = predictions(made, toy_examples)
    errors = score(values, toy_examples.uses.values)
    assert errors["receive", "burst_s"].median_ape < 10.0
    assert errors["memory", "idle_s"].median_ape < 10.0
    assert patterns > 0.95
    again = train(toy_examples, shape=default_shape(hidden=24), config=replace(config, epochs=1))
    once = train(toy_examples, shape=default_shape(hidden=24), config=replace(config, epochs=1))
    assert all(np.array_equal(again.weights[name], once.weights[name]) for name in once.weights)


def test_transfer_keeps_the_first_layers_and_trains_the_others(toy_examples: RunExamples) -> None:
    base = train(toy_examples, shape=default_shape(hidden=12), config=QUICK)
    adapted = train(toy_examples, start=base, config=QUICK)
    for name, before in base.weights.items():
        kept = np.array_equal(before, adapted.weights[name])
        assert kept == name.startswith(("first.", "repeated.", "look.")), name
    assert not np.array_equal(adapted.weights["late.linear.weight"], base.weights["repeated.linear.weight"])


def test_an_anchor_holds_an_adapted_inspector_near_its_start(toy_examples: RunExamples) -> None:
    config = InspectorTraining(epochs=4)
    start = train(toy_examples, config=config)

    def moved(anchor: float) -> float:
        adapted = train(toy_examples, config=replace(config, seed=1, anchor=anchor), start=start)
        late = {
            f"late.{name.removeprefix('repeated.')}": value
            for name, value in start.weights.items()
            if "repeated" in name
        }
        first = {**start.weights, **late}
        return sum(float(((value - first[name]) ** 2).sum()) for name, value in adapted.weights.items())

    free, held, tight = moved(0.0), moved(4.0), moved(1e5)
    assert free > held > tight
    assert tight < 0.05 * free


def test_transfer_of_the_head_alone_has_no_late_steps(toy_examples: RunExamples) -> None:
    base = train(toy_examples, shape=default_shape(hidden=12), config=QUICK)
    adapted = train(toy_examples, start=base, config=QUICK, late=0.0)
    changed = {n.partition(".")[0] for n, w in adapted.weights.items() if not np.array_equal(w, base.weights[n])}
    assert changed == {"head"}


def test_the_number_of_steps_is_half_the_number_of_groups() -> None:
    shape = default_shape(most_steps=12)
    assert [shape.steps(groups) for groups in (1, 8, 20, 100)] == [0, 4, 10, 12]
    assert replace(shape, late=0.5).early(20) == 5


def test_too_few_runs_and_wrong_shapes_are_refused(toy_examples: RunExamples) -> None:
    with pytest.raises(RequestError, match="7 runs to learn from"):
        train(toy_examples.take(np.arange(7)), config=QUICK)
    with pytest.raises(RequestError, match="hidden of an inspector is 0"):
        InspectorShape(features=3, setting=2, hidden=0)
