"""A user's own modules: live ones with example inputs, sequences of another length, several losses and optimizers."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import traincast
from traincast import CaptureError, RequestError
from traincast.graph import OpKind, Phase
from traincast.graph.capture.capture import capture
from traincast.graph.load import load_model
from traincast.graph.zoo import Traceable


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))


def test_a_live_module_is_forecast_like_its_graph_and_keeps_its_weights() -> None:
    module = mlp()
    before = module[0].weight.clone()
    inputs = torch.zeros(3, 64)
    live = traincast.predict(module, inputs, cluster="dgx-a100:1", strategy="dp=8", global_batch=64).report
    graph = traincast.capture(module, inputs)
    assert live.step_s == traincast.predict(graph, cluster="dgx-a100:1", strategy="dp=8", global_batch=64).report.step_s
    assert graph.num_parameters == 64 * 256 + 256 + 256 * 10 + 10
    assert graph.flops(Phase.FORWARD) >= 2 * (64 * 256 + 256 * 10)
    assert module[0].weight.device.type == "cpu" and bool((module[0].weight == before).all())


def test_example_inputs_are_needed_for_a_module_and_refused_for_a_name() -> None:
    with pytest.raises(RequestError, match="Sequential has no example inputs; give a tensor"):
        load_model(mlp())
    with pytest.raises(RequestError, match="example inputs are for a live module, and the model is 'gpt2'"):
        load_model("gpt2", torch.zeros(1))
    with pytest.raises(RequestError, match="the model is a int: give a name, a graph"):
        load_model(7)


class Reader(nn.Module):  # type: ignore[misc]
    """Tokens and a mask of the same length."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(100, 32)
        self.out = nn.Linear(32, 100)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.out(self.words(ids) * mask[:, 0, :, None])


def test_a_sequence_length_changes_every_input_that_has_the_sequence() -> None:
    inputs = (torch.zeros(1, 16, dtype=torch.int64), torch.ones(1, 16, 16))
    short, long = load_model(Reader(), inputs), load_model(Reader(), inputs, seq=48)
    assert (short.tokens_per_sample, long.tokens_per_sample) == (16, 48)
    products = [sum(op.flops for op, _ in g if op.kind is OpKind.GEMM) for g in (short, long)]
    assert products[1] == 3 * products[0]


def test_rows_of_features_have_a_sequence_and_images_have_none() -> None:
    rows = load_model(mlp(), torch.zeros(1, 8, 64), seq=24)
    assert rows.tokens_per_sample == 24
    assert rows.flops(Phase.FORWARD) == 3 * load_model(mlp(), torch.zeros(1, 8, 64)).flops(Phase.FORWARD)
    with pytest.raises(RequestError, match=r"neither tokens \[batch, seq\] nor features"):
        load_model(nn.Conv2d(3, 8, 3), torch.zeros(1, 3, 32, 32), seq=24)


def test_a_factory_without_the_argument_makes_its_inputs_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_reader.py").write_text(
        "import torch\nfrom tests.graph.test_own_modules import Reader\n\n\n"
        "def make():\n    return Reader(), (torch.zeros(1, 16, dtype=torch.int64), torch.ones(1, 16, 16))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert load_model("own_reader:make", seq=48).tokens_per_sample == 48


class Pair(nn.Module):  # type: ignore[misc]
    """A generator and a discriminator."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Linear(16, 64)
        self.discriminator = nn.Linear(64, 1)


def gan_losses(module: Pair, noise: torch.Tensor, real: torch.Tensor) -> Iterator[torch.Tensor]:
    fake = module.generator(noise)
    yield module.discriminator(real).mean() - module.discriminator(fake.detach()).mean()
    yield module.discriminator(fake).mean()


def gan(optimizers: dict[str, str]) -> Traceable:
    return Traceable(
        module=Pair(),
        inputs=lambda batch: (torch.empty(batch, 16), torch.empty(batch, 64)),
        losses=gan_losses,
        optimizer="sgd-plain",
        optimizers=optimizers,
    )


def test_a_step_with_two_losses_has_the_operators_of_both_and_an_optimizer_for_each_part() -> None:
    graph = capture(gan({"generator.*": "adam"}), name="gan")
    updates = {(op.scope, op.name) for op, _ in graph if op.phase is Phase.OPTIMIZER}
    assert updates == {("generator", "adam"), ("discriminator", "sgd-plain")}
    products = [(op.scope, op.phase) for op, _ in graph if op.kind is OpKind.GEMM]
    assert products.count(("generator", Phase.FORWARD)) == 1
    assert products.count(("discriminator", Phase.FORWARD)) == 3  # real and fake samples, and for the generator
    assert products.count(("generator", Phase.BACKWARD)) == 1  # its weights: noise needs no gradient
    assert products.count(("discriminator", Phase.BACKWARD)) == 4  # weights three times, samples for the generator


def test_an_optimizer_that_is_unknown_is_refused() -> None:
    with pytest.raises(CaptureError, match="unknown optimizer 'adagrad': known are adamw"):
        capture(gan({"generator.*": "adagrad"}), name="gan")


def test_a_pattern_of_optimizers_that_matches_nothing_is_refused() -> None:
    said = r"no parameter matches 'critic\.\*'; the first parameters are generator\.weight"
    with pytest.raises(CaptureError, match=said):
        capture(gan({"generator.*": "adam", "critic.*": "sgd"}), name="gan")


def test_example_inputs_of_a_wrong_type_are_named() -> None:
    with pytest.raises(RequestError, match="has example inputs of type set; give a tensor, a tuple of tensors in"):
        load_model(nn.Linear(8, 8), {torch.zeros(1, 8)})


def test_a_module_that_never_runs_keeps_all_of_its_parameters() -> None:
    class Idle(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.tower = nn.ModuleList(nn.Linear(8, 8) for _ in range(5))
            self.layers = nn.Sequential(*(nn.Linear(16, 16) for _ in range(4)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers(x)

    graph = load_model(Idle(), torch.zeros(1, 16))
    assert graph.num_parameters == 5 * 72 + 4 * 272
    assert graph.num_trainable_parameters == 4 * 272
    assert sum(block.count for block in graph.blocks if block.repeated) == 4


class Recommender(nn.Module):  # type: ignore[misc]
    """A bag of twenty ids per sample, summed up."""

    def __init__(self, *, sparse: bool) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(100_000, 64, mode="sum", sparse=sparse)
        self.out = nn.Linear(64, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.out(self.table(ids))


def test_sparse_gradients_touch_only_the_rows_that_were_looked_up() -> None:
    ids = torch.zeros(1, 20, dtype=torch.int64)
    dense, sparse = (load_model(Recommender(sparse=flag), ids) for flag in (False, True))
    assert dense.num_parameters == sparse.num_parameters == 6_400_065
    assert sparse.num_trainable_parameters == 65, "no dense gradient of the table is made, kept or exchanged"
    of_table = {op.name: op for op, _ in sparse if op.scope == "table"}
    assert of_table["_embedding_bag"].bytes_read == 20 * 64 * 4 + 20 * 8 + 8
    assert of_table["_embedding_bag_backward"].bytes_written == 20 * 64 * 4
    assert of_table["sparse_adamw"].nbytes == 7 * 20 * 64 * 4  # gradient, weight and two states read, three written
    states = [t.spec.nbytes for block in sparse.blocks for t in block.fixed if t.buffer]
    assert states == [2 * 6_400_000 * 4]


def test_a_step_with_sparse_gradients_is_shorter_than_with_dense_ones() -> None:
    ids = torch.zeros(1, 20, dtype=torch.int64)
    dense, sparse = (
        traincast.predict(Recommender(sparse=flag), ids, cluster="dgx-a100:1", strategy="dp=8", global_batch=512).report
        for flag in (False, True)
    )
    assert sparse.step_s < dense.step_s


class Named(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(32, 64), nn.Linear(16, 64)

    def forward(self, wide: torch.Tensor, *, narrow: torch.Tensor) -> dict[str, object]:
        return {"sum": self.wide(wide) + self.narrow(narrow), "nothing": None}


class Whole(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(32, 64), nn.Linear(16, 64)

    def forward(self, batch: dict[str, torch.Tensor]) -> dict[str, object]:
        return {"sum": self.wide(batch["a"]) + self.narrow(batch["b"])}


@pytest.mark.parametrize(
    ("module", "inputs"),
    [
        (Named(), {"wide": torch.zeros(2, 32), "narrow": torch.zeros(2, 16)}),
        (Whole(), {"a": torch.zeros(2, 32), "b": torch.zeros(2, 16)}),
        (Whole(), ({"a": torch.zeros(2, 32), "b": torch.zeros(2, 16)},)),
    ],
)
def test_inputs_may_be_a_dict_by_name_or_as_one_argument(module: nn.Module, inputs: object) -> None:
    graph = load_model(module, inputs)
    products = [op.flops for op in graph.operators if op.kind is OpKind.GEMM and op.phase is Phase.FORWARD]
    assert sorted(products) == [2 * 16 * 64, 2 * 32 * 64]
    assert {op.scope for op in graph.operators if op.kind is OpKind.GEMM} == {"wide", "narrow"}


def test_a_module_of_torchscript_is_refused_in_words() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = torch.jit.script(nn.Linear(8, 8))
    with pytest.raises(RequestError, match="is TorchScript, whose operators cannot be traced"):
        load_model(module, torch.zeros(2, 8))
