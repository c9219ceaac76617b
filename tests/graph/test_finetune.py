"""Fine-tuning as a transform: what is parsed, what is inserted, what vanishes; held to what autograd itself does."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch

from tests.conftest import CNN, GPT, LLAMA, graph_of
from traincast import OperatorGraph, RequestError, TensorSpec, UnknownNameError, load_graph, save_graph
from traincast.graph import DType, OpKind, Phase
from traincast.graph.capture.capture import capture
from traincast.graph.tuning.storage import STORAGES, find_storage
from traincast.graph.tuning.targets import matches
from traincast.graph.tuning.tune import FineTuning, fine_tuned, parse_fine_tuning
from traincast.graph.zoo import Traceable

HIDDEN, LAYERS = 256, 4


def tuned(
    model: str | OperatorGraph, lora: str | None = None, *freeze: str, quantize: int | str | None = None
) -> OperatorGraph:
    graph = graph_of(model) if isinstance(model, str) else model
    return fine_tuned(graph, parse_fine_tuning(lora, freeze, quantize))


def test_options_are_read_into_one_value() -> None:
    found = parse_fine_tuning("rank=16,targets=attention+mlp,alpha=32,dropout=0.05,train=head", ["embedding"], 4)
    assert found == FineTuning(
        adapter="lora",
        rank=16,
        targets=("attention", "mlp"),
        freeze=("embedding",),
        train=("head",),
        quantize="nf4",
        dropout=0.05,
    )
    assert found.bits == 4
    assert found.alpha == 32.0
    assert parse_fine_tuning() == FineTuning()
    assert str(found) == "lora rank=16,targets=attention+mlp,dropout=0.05,train=head; freeze embedding; quantize nf4"


@pytest.mark.parametrize(
    ("lora", "freeze", "quantize", "message"),
    [
        ("targets=attention", (), None, "lora has no rank"),
        ("rank=16,target=mlp", (), None, "lora 'target=mlp': expected NAME=VALUE"),
        ("rank=16,rank=8", (), None, "rank is given twice"),
        ("rank=16,dtype=int8", (), None, "expected fp32 or model"),
        ("rank=16,dropout=1.5", (), None, "LoRA dropout 1.5"),
        (None, (), 4, "quantised weights cannot be trained"),
        (None, ("",), None, "not an empty text"),
    ],
)
def test_bad_options_are_refused_in_one_line(
    lora: str | None, freeze: tuple[str, ...], quantize: int | None, message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        parse_fine_tuning(lora, freeze, quantize)


def test_an_unknown_format_is_refused_and_the_known_ones_named() -> None:
    with pytest.raises(UnknownNameError, match="unknown quantisation '5'"):
        parse_fine_tuning("rank=8", (), 5)


def test_targets_and_patterns_that_match_nothing_are_refused() -> None:
    with pytest.raises(RequestError, match="lora target 'gate' matches no module; there are layers"):
        tuned(GPT, "rank=8,targets=gate")
    with pytest.raises(RequestError, match="freeze 'encoder' matches no module; there are embedding"):
        tuned(GPT, None, "encoder")
    with pytest.raises(RequestError, match="nothing is left to train"):
        tuned(GPT, None, "*")
    with pytest.raises(RequestError, match="is fine-tuned already"):
        tuned(tuned(GPT, "rank=8"), "rank=8")


def test_freezing_nothing_is_the_graph_itself() -> None:
    assert fine_tuned(graph_of(GPT), FineTuning()) is graph_of(GPT)


@pytest.mark.parametrize("rank", [1, 16])
@pytest.mark.parametrize(
    ("model", "targets", "widths"),
    [
        (GPT, "attention", 8),  # q, k, v and o: inputs and outputs of one hidden size each
        (GPT, "mlp", 10),
        (GPT, "q+v", 4),
        (GPT, "qkv", 6),
        (GPT, "all", 18),
        (GPT, "layers.*.attention.qkv", 4),  # one adapter for the whole layer: one input, three outputs
        (LLAMA, "qkv", 2 + 1.5 + 1.5),
        (LLAMA, "o", 2),
        (LLAMA, "q_proj+v_proj", 2 + 1.5),  # names of other implementations
        (LLAMA, "linear_qkv+linear_proj", 3 + 2),
        (GPT, "c_attn", 4),
        (GPT, "self_attn", 8),
    ],
)
def test_adapters_have_rank_times_inputs_and_outputs(model: str, targets: str, widths: float, rank: int) -> None:
    graph = tuned(model, f"rank={rank},targets={targets}")
    assert graph.num_trainable_parameters == LAYERS * rank * widths * HIDDEN
    assert graph.num_parameters == graph_of(model).num_parameters + graph.num_trainable_parameters


def test_gate_and_up_of_a_gated_layer_are_told_apart() -> None:
    whole = tuned(LLAMA, "rank=4,targets=mlp").num_trainable_parameters
    parts = [tuned(LLAMA, f"rank=4,targets={name}").num_trainable_parameters for name in ("gate", "up", "down")]
    assert sum(parts) == whole
    assert parts[0] == parts[1] == parts[2]


def test_the_first_layer_ends_backward_at_its_first_adapter() -> None:
    graph = tuned(GPT, "rank=8,targets=attention")
    first, rest = (b for b in graph.blocks if b.scope.startswith("layers"))
    assert (first.scope, first.count, first.first) == ("layers.0", 1, True)
    assert (rest.scope, rest.count) == ("layers.1", LAYERS - 1)
    names = {n: Counter(graph.operators[i].scope for i in b.backward) for n, b in enumerate((first, rest))}
    assert names[0]["layers.0.norm1"] == 0
    assert names[1]["layers.1.norm1"] == 2
    assert not any(b.backward for b in graph.blocks if b.scope.startswith("embedding"))


def test_layers_named_by_number_are_split_into_runs() -> None:
    graph = tuned(GPT, None, "embedding", "layers.[01]")
    runs = [(b.scope, b.count, bool(b.backward), bool(b.optimizer)) for b in graph.blocks if b.scope[:7] == "layers."]
    assert runs == [("layers.0", 2, False, False), ("layers.2", 1, True, True), ("layers.3", 1, True, True)]
    by_hand = tuned(GPT, None, "embedding", "layers.0", "layers.1")
    assert sum(op.flops * n for op, n in by_hand) == sum(op.flops * n for op, n in graph)
    assert by_hand.num_trainable_parameters == graph.num_trainable_parameters


def test_a_frozen_linear_layer_keeps_nothing_for_backward() -> None:
    graph = tuned(GPT, None, "layers.*.mlp")
    kept = {op.scope: len(op.saved) for op in graph.operators if op.phase is Phase.FORWARD and op.kind is OpKind.GEMM}
    assert kept["layers.0.mlp.up"] == kept["layers.0.mlp.down"] == 0
    assert kept["layers.0.attention.qkv"] == 1


def test_frozen_convolutions_make_one_product_less() -> None:
    full, graph = graph_of(CNN), tuned(CNN, None, "layer2")
    before, after = (
        {op.scope: int(op.attributes["products"]) for op in g.operators if op.name == "convolution_backward"}
        for g in (full, graph)
    )
    frozen = {scope for scope in before if scope.startswith("layer2")}
    assert frozen
    assert after == {scope: n - (scope in frozen) for scope, n in before.items()}


def test_formats_follow_their_closed_forms() -> None:
    weight = TensorSpec((4096, 1024))
    numel = 4096 * 1024
    assert find_storage("4").name == "nf4"
    assert find_storage("8").name == "int8"
    assert STORAGES["nf4"].nbytes(weight) == numel / 2 + numel / 64 + numel / 64 / 256 * 4 + 4 + 64
    assert STORAGES["nf4-single"].nbytes(weight) == numel / 2 + numel / 64 * 4 + 64
    assert STORAGES["int8"].nbytes(weight) == numel + 4096 * 4
    assert STORAGES["gptq"].nbytes(weight) == numel / 2 + numel / 128 * 2.5 + 1024 * 4


def test_quantised_weights_are_dequantised_for_every_product() -> None:
    graph = tuned(GPT, "rank=8,targets=q+v", quantize=4)
    block = next(b for b in graph.blocks if b.count == LAYERS - 1)
    opened = {
        phase: [graph.operators[i] for i in indices if graph.operators[i].name == "dequantize"]
        for phase, indices in (("forward", block.forward), ("backward", block.backward))
    }
    assert [len(opened[phase]) for phase in ("forward", "backward")] == [4, 4]
    packed = {t.scope: t for t in block.fixed if t.bits}
    assert set(packed) == {f"layers.1.{name}" for name in ("attention.qkv", "attention.out", "mlp.up", "mlp.down")}
    for op in opened["forward"]:
        assert op.inputs[0].dtype is DType.INT8
        assert op.inputs[0].numel == -(-packed[op.scope].stored // 1)
        assert op.outputs[0].numel == packed[op.scope].spec.numel
    assert not any(t.bits for b in graph.blocks if not b.repeated for t in b.fixed)


def test_a_fine_tuned_graph_survives_a_file(tmp_path: Path) -> None:
    graph = tuned(GPT, "rank=8,targets=all,dropout=0.1", quantize="gptq")
    save_graph(graph, tmp_path / "graph.json")
    assert load_graph(tmp_path / "graph.json") == graph


class Lora(torch.nn.Module):  # type: ignore[misc]
    """A linear layer with an adapter, as PEFT writes it."""

    def __init__(self, base: torch.nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_a = torch.nn.Linear(base.in_features, rank, bias=False)
        self.lora_b = torch.nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.base(x) + self.lora_b(self.lora_a(x)) * 2.0
        return result


class Own(torch.nn.Module):  # type: ignore[misc]
    """A user's own network: an embedding, gated layers with residuals, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(50, 32)
        self.blocks = torch.nn.ModuleList(Gated() for _ in range(2))
        self.score = torch.nn.Linear(32, 50)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = x + block(x)
        scores: torch.Tensor = self.score(x)
        return torch.nn.functional.cross_entropy(scores.flatten(0, 1), tokens.flatten())


class Gated(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(32)
        self.fc1 = torch.nn.Linear(32, 64, bias=False)
        self.gate = torch.nn.Linear(32, 64, bias=False)
        self.fc2 = torch.nn.Linear(64, 32, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        result: torch.Tensor = self.fc2(torch.nn.functional.silu(self.gate(y)) * self.fc1(y))
        return result


def captured(module: torch.nn.Module) -> OperatorGraph:
    inputs = lambda batch: (torch.zeros(batch, 16, dtype=torch.long),)  # noqa: E731
    return capture(Traceable(module=module, inputs=inputs, tokens_per_sample=16), name="own")


def amounts(graph: OperatorGraph) -> dict[str, float]:
    """What must agree with a capture: products by phase, saved bytes, trained and all parameters."""
    saved = sum(t.nbytes * b.count for b in graph.blocks for i in b.forward for t in graph.operators[i].saved)
    products = {
        phase.value: sum(op.flops * n for op, n in graph if op.kind is OpKind.GEMM and op.phase is phase)
        for phase in (Phase.FORWARD, Phase.BACKWARD)
    }
    counts = Counter((op.phase.value, op.kind.value) for op, n in graph for _ in range(n))
    return {
        **products,
        **{f"{phase} {kind}": n for (phase, kind), n in counts.items()},
        "saved": saved,
        "trained": graph.num_trainable_parameters,
        "parameters": graph.num_parameters,
    }


@pytest.mark.parametrize(
    "frozen", [("embed",), ("embed", "blocks.0"), ("blocks.*.fc1", "blocks.*.fc2"), ("score",), ("blocks.*.norm",)]
)
def test_frozen_modules_leave_what_autograd_leaves(frozen: tuple[str, ...]) -> None:
    module = Own()
    for path, child in module.named_modules():
        if path and any(matches(path, pattern) for pattern in frozen):
            child.requires_grad_(False)
    assert amounts(tuned(captured(Own()), None, *frozen)) == amounts(captured(module))


@pytest.mark.parametrize("names", [("fc1", "gate", "fc2"), ("fc2",), ("fc1",)])
def test_adapters_run_what_a_module_with_adapters_runs(names: tuple[str, ...]) -> None:
    module = Own().requires_grad_(False)
    for block in module.blocks:
        for name in names:
            setattr(block, name, Lora(getattr(block, name), 4))
    found = amounts(tuned(captured(Own()), f"rank=4,dtype=model,targets={'+'.join(names)}"))
    assert found == amounts(captured(module))


def test_adapters_in_fp32_convert_what_peft_converts() -> None:
    """PEFT 0.21 under autocast, counted on three layers that share an input: four conversions per pass and adapter.

    Forward converts the input to fp32 and back, and both matrices. Backward converts the gradients of both matrices,
    and the gradient of the input to fp32 and back, unless nothing below is trained.
    """
    plain, wide, fused = (
        amounts(tuned(captured(Own()), f"rank=4,targets=fc1+gate+fc2,{how}"))
        for how in ("dtype=model", "dtype=fp32", "dtype=fp32,compute=fused")
    )
    layers = 2
    assert wide["forward copy"] - plain.get("forward copy", 0) == 4 * 3 * layers
    assert wide["backward copy"] - plain["backward copy"] == 4 * 3 * layers - 2 * 2  # fc1 and gate of the first layer
    assert {k: v for k, v in fused.items() if "copy" in k} == {k: v for k, v in plain.items() if "copy" in k}
    assert wide["forward"] == plain["forward"]
    shared = 4 * 16 * 32  # fc1 and gate keep an input each, in place of the one that both share
    assert wide["saved"] - plain["saved"] == layers * shared


def test_frozen_modules_get_no_adapters() -> None:
    every = tuned(GPT, "rank=4,targets=attention").num_trainable_parameters
    assert tuned(GPT, "rank=4,targets=attention", "layers.[0-1]").num_trainable_parameters == every // LAYERS * 2
