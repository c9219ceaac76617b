"""The sequence models of the zoo against published parameter counts and closed forms, without any weights."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.graph.training_step import built
from traincast import RequestError
from traincast.graph.zoo import Traceable, build, card, names
from traincast.graph.zoo.language.t5 import RelativeBias
from traincast.graph.zoo.language.transformer import bert, deepseek, gpt, gpt_oss, llama, moe, mpt, vit
from traincast.graph.zoo.language.transformer_xl import _shift
from traincast.graph.zoo.parts.layers import LayerConfig, MoE, activate, gated
from traincast.graph.zoo.parts.stack import Transformer, TransformerConfig

FAMILIES = frozenset(
    ("gpt", "llama", "mpt", "bert", "moe", "deepseek", "gpt-oss", "vit", "t5", "transformer-xl", "nmt")
)
MODELS = [name for name in names() if card(name).family in FAMILIES]
LARGE_PRIME = 10_007

SMALL = {
    "gpt": "gpt:layers=3,hidden=48,heads=4,vocab=101,seq=16",
    "gpt with rope": "gpt:layers=3,hidden=64,heads=4,vocab=101,seq=16,positions=rope,rope_fraction=0.25,parallel=true",
    "llama": "llama:layers=3,hidden=48,heads=4,vocab=101,seq=16",
    "llama with groups": "llama:layers=3,hidden=48,heads=4,kv_heads=2,vocab=101,seq=16,qk_norm=true,tied=true",
    "llama with window": "llama:layers=4,hidden=48,heads=4,vocab=101,seq=16,window=4,window_period=2",
    "mpt": "mpt:layers=3,hidden=48,heads=4,vocab=101,seq=16,positions=alibi,bias=false",
    "bert": "bert:layers=3,hidden=48,heads=4,vocab=101,seq=16,predictions=5",
    "moe": "moe:layers=3,hidden=48,heads=4,kv_heads=2,experts=8,top_k=2,expert_ffn=24,vocab=101,seq=16",
    "deepseek": "deepseek:layers=4,hidden=48,heads=4,experts=8,top_k=2,expert_ffn=24,ffn=64,q_lora=20,kv_lora=12,"
    "rope_dim=4,nope_dim=8,v_dim=6,vocab=101,seq=16",
    "gpt-oss": "gpt-oss:layers=4,hidden=48,heads=4,kv_heads=2,head_dim=8,experts=8,vocab=101,seq=16,window=4",
    "vit": "vit:layers=3,hidden=48,heads=4,patch=4,image=16,classes=11",
    "t5": "t5:layers=3,hidden=48,heads=4,vocab=101,seq=16",
    "transformer-xl": "transformer-xl:layers=3,hidden=48,heads=4,head_dim=8,vocab=300000,seq=16",
    "nmt": "nmt:layers=4,hidden=48,vocab=101,seq=6",
}
PRESETS = [name for name in SMALL if name not in ("t5", "transformer-xl", "nmt")]


def parameter_count(model: Traceable) -> int:
    return sum(p.numel() for p in model.module.parameters())


def matmul_parameters(config: TransformerConfig) -> int:
    """Weights that a token is multiplied with, logits included: forward takes two FLOPs for each."""
    return sum(map(_layer_parameters, config.layer_configs())) + config.layer.hidden * config.vocab


def _layer_parameters(c: LayerConfig) -> int:
    if c.latent is None:
        attention = c.hidden * (2 * c.heads + 2 * c.kv_heads) * c.head_dim
    else:
        m, qk_dim = c.latent, c.latent.nope_dim + c.latent.rope_dim
        queries = (c.hidden + c.heads * qk_dim) * m.q_rank if m.q_rank else c.hidden * c.heads * qk_dim
        keys = c.hidden * (m.kv_rank + m.rope_dim) + m.kv_rank * c.heads * (m.nope_dim + m.v_dim)
        attention = queries + keys + c.heads * m.v_dim * c.hidden
    matrices = 3 if gated(c.activation) else 2
    if c.experts is None:
        return attention + matrices * c.hidden * c.ffn
    e = c.experts
    return attention + c.hidden * e.count + matrices * c.hidden * (e.top_k * e.ffn + e.shared_ffn)


class Shapes(TorchDispatchMode):  # type: ignore[misc]
    """Names of the dispatched operators, and the FLOPs of their matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.matmul_flops = 0
        self.attention_flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.split("::")[-1]
        self.names.append(name)
        if name in ("mm", "addmm", "grouped_mm"):
            rows = args[1] if name == "addmm" else args[0]
            self.matmul_flops += 2 * out.numel() * rows.shape[-1]
        if "attention" in name and not name.endswith("backward"):
            q, _, v = args[:3]
            self.attention_flops += 2 * q.numel() * q.shape[2] + 2 * q.shape[:3].numel() * q.shape[2] * v.shape[3]
        return out


def step(model: Traceable, *, batch: int, fake: bool) -> tuple[nn.Module, Shapes, Shapes]:
    """The module after one forward and backward, and what each of the two ran."""
    module = copy.deepcopy(model.module)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode if fake else torch.device("meta"):
        if fake:
            module.to_empty(device="cpu")
        device = next(module.parameters()).device
        assert model.loss is not None
        inputs = [torch.empty_like(t, device=device) for t in model.inputs(batch)]
        with Shapes() as forward:
            loss = model.loss(module(*inputs))
        assert loss.shape == ()
        with Shapes() as backward:
            loss.backward()
    return module, forward, backward


@pytest.mark.long(but=lambda name: card(name).family)
@pytest.mark.parametrize("name", [n for n in MODELS if n != "switch-xl-4"])
def test_parameters_are_those_published(name: str) -> None:
    published = card(name).published
    expected, digits = int(published["parameters"]), int(published.get("parameters_digits", 0))
    unit = 10 ** (len(str(expected)) - digits) if digits else 0
    assert abs(parameter_count(built(name)) - expected) <= unit


def test_a_switch_transformer_is_its_t5_with_more_experts_and_a_router_in_every_other_layer() -> None:
    layers, hidden, ffn, experts = 24, 1024, 16384, 4
    more = (experts - 1) * 2 * hidden * ffn + hidden * experts
    assert parameter_count(built("switch-xl-4")) == parameter_count(built("t5-3b")) + layers * more


@pytest.mark.parametrize("name", [n for n in MODELS if "active_parameters" in card(n).published])
def test_active_parameters_are_those_published(name: str) -> None:
    module, published = built(name).module, card(name).published
    expected = int(published["active_parameters"])
    unit = 10 ** (len(str(expected)) - int(published["active_parameters_digits"]))
    idle = 0
    for m in module.modules():
        if isinstance(m, MoE):
            weights = sum(p.numel() for p in (m.up, m.down, m.up_bias, m.down_bias) if p is not None)
            idle += weights // m.experts * (m.experts - m.top_k)
    active = parameter_count(built(name)) - idle
    without_embedding = active - module.embedding.tokens.weight.numel()
    # Laboratories differ in whether the input embedding counts.
    assert without_embedding - unit <= expected <= active + unit


def test_gelu_as_hugging_face_writes_it_out_is_the_approximate_one() -> None:
    x = torch.linspace(-6.0, 6.0, 101)
    torch.testing.assert_close(activate("gelu_new", x), nn.functional.gelu(x, approximate="tanh"))


def test_mpt_has_as_many_positions_as_tokens_at_every_published_length() -> None:
    published = {512: 124131840, 1024: 124525056, 2048: 125311488, 4096: 126884352, 32768: 148904448}
    assert {seq: parameter_count(build("mpt-125m", seq=seq)) for seq in published} == published


def test_learned_positions_stay_when_a_sequence_is_shorter_and_grow_when_it_is_longer() -> None:
    assert parameter_count(build("gpt2", seq=128)) == parameter_count(built("gpt2"))
    assert parameter_count(build("gpt2", seq=2048)) == parameter_count(built("gpt2")) + 1024 * 768


def test_megatron_formula_for_parameters_holds() -> None:
    for name in (n for n in MODELS if n.startswith("megatron")):
        p = card(name).parameters
        layers, hidden = p["layers"], p["hidden"]
        formula = 12 * layers * hidden**2 * (1 + 13 / (12 * hidden) + (p["vocab"] + p["seq"]) / (12 * layers * hidden))
        assert parameter_count(built(name)) == round(formula) + 2 * hidden  # the final norm


@pytest.mark.long(but=5)
@pytest.mark.parametrize("name", SMALL)
def test_every_parameter_gets_a_gradient_on_meta(name: str) -> None:
    module, _, _ = step(built(SMALL[name]), batch=2, fake=False)
    assert [path for path, p in module.named_parameters() if p.grad is None] == []


@pytest.mark.long(but=3)
@pytest.mark.parametrize("name", SMALL)
def test_a_large_prime_batch_runs_on_fake_tensors(name: str) -> None:
    model = built(SMALL[name])
    module, _, _ = step(model, batch=LARGE_PRIME, fake=True)
    assert all(p.grad is not None for p in module.parameters())
    assert all(t.shape[0] == LARGE_PRIME and t.device.type == "meta" for t in model.inputs(LARGE_PRIME))


@pytest.mark.long(but=4)
@pytest.mark.parametrize("name", PRESETS)
def test_attention_is_one_operator_forward_and_one_backward(name: str) -> None:
    model = built(SMALL[name])
    _, forward, backward = step(model, batch=3, fake=True)
    layers = len(model.module.layers)
    assert [sum("attention" in n for n in seen.names) for seen in (forward, backward)] == [layers, layers]
    assert not {"bmm", "_softmax"} & set(forward.names) - ({"_softmax"} if "experts" in SMALL[name] else set())
    assert "bmm" not in backward.names


@pytest.mark.long(but=4)
@pytest.mark.parametrize("name", [n for n in PRESETS if n not in ("bert", "vit")])
def test_forward_flops_follow_the_closed_form(name: str) -> None:
    model, batch = built(SMALL[name]), 3
    _, forward, _ = step(model, batch=batch, fake=True)
    config = model.module.config
    assert forward.matmul_flops == 2 * batch * config.layer.seq * matmul_parameters(config)
    c = config.layer
    widths = 2 * c.head_dim if c.latent is None else c.head_dim + c.latent.v_dim
    assert forward.attention_flops == 2 * batch * config.layers * c.heads * c.seq**2 * widths


def test_matrix_weights_of_gpt3_are_its_parameters_but_embeddings_norms_and_biases() -> None:
    model = built("gpt3-175b")
    config = model.module.config
    others = 2048 * 12288 + 96 * (2 * 2 * 12288 + (3 + 1 + 4 + 1) * 12288) + 2 * 12288
    assert matmul_parameters(config) == parameter_count(model) - others


@pytest.mark.parametrize("name", [n for n in SMALL if n not in ("t5", "nmt")])
def test_layers_can_be_cut_from_the_list(name: str) -> None:
    model = copy.deepcopy(built(SMALL[name]).module)
    model.layers = nn.ModuleList(list(model.layers)[:1])
    output = model(*built(SMALL[name]).inputs(2))
    whole = built(SMALL[name]).module(*built(SMALL[name]).inputs(2))
    shapes = [[t.shape for t in (o if isinstance(o, tuple) else (o,))] for o in (output, whole)]
    assert shapes[0] == shapes[1]


def test_windows_and_dense_layers_stand_where_the_models_have_them() -> None:
    assert [m.attention.window for m in build(SMALL["gpt-oss"]).module.layers] == [4, 0, 4, 0]
    assert [m.attention.window for m in gpt_oss(layers=2, hidden=64, heads=2, experts=4, seq=128).module.layers] == [
        0,
        0,
    ]
    experts = [isinstance(m.mlp, MoE) for m in built("deepseek-v3").module.layers]
    assert experts == [False] * 3 + [True] * 58


def test_experts_compute_the_weighted_sum_of_their_chosen_mlps() -> None:
    torch.manual_seed(0)
    module = moe(layers=1, hidden=8, heads=2, experts=5, top_k=2, expert_ffn=6, vocab=7, seq=4).module
    layer = module.layers[0].mlp.to_empty(device="cpu")
    for p in layer.parameters():
        nn.init.normal_(p)
    x = torch.randn(3, 4, 8)
    weights, choice = layer._route(x.reshape(-1, 8))
    expected = torch.zeros(12, 8)
    for row, token in enumerate(x.reshape(-1, 8)):
        for weight, expert in zip(weights[row], choice[row], strict=True):
            gate, up = (token @ layer.up[expert]).chunk(2)
            expected[row] += weight * ((nn.functional.silu(gate) * up) @ layer.down[expert])
    torch.testing.assert_close(layer(x).reshape(12, 8), expected)


def test_a_causal_model_does_not_look_ahead() -> None:
    torch.manual_seed(0)
    for spec in ("gpt", "mpt", "deepseek"):
        model = build(SMALL[spec])
        module = model.module.to_empty(device="cpu").eval()
        for name, p in module.named_parameters():
            nn.init.ones_(p) if "norm" in name else nn.init.normal_(p, std=0.05)
        for name, b in module.named_buffers():
            nn.init.zeros_(b) if "balance" in name else nn.init.uniform_(b, -1, 1)
        ids = torch.randint(0, 101, (2, 16))
        changed = ids.clone()
        changed[:, 9] = (ids[:, 9] + 1) % 101
        before, after = module(ids), module(changed)
        torch.testing.assert_close(before[:, :9], after[:, :9])
        assert not torch.allclose(before[:, 9:], after[:, 9:])


def test_relative_positions_of_t5_fall_into_logarithmic_buckets() -> None:
    causal = RelativeBias(heads=2, seq=200, causal=True).buckets
    assert causal[150, [150, 149, 135, 134, 30]].tolist() == [0, 1, 15, 16, 31]
    assert causal[0].max() == 0
    both = RelativeBias(heads=2, seq=200, causal=False).buckets
    assert both[100, [100, 99, 101, 0, 199]].tolist() == [0, 1, 17, 15, 31]


def test_relative_shift_of_transformer_xl_aligns_distances() -> None:
    rows, keys = 3, 5
    scores = torch.arange(rows * keys).view(1, 1, rows, keys)
    shifted = _shift(scores)[0, 0]
    for row in range(rows):
        for key in range(keys - rows + row + 1):
            assert shifted[row, key] == scores[0, 0, row, key + rows - 1 - row]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("gpt:layers=2,hidden=100,heads=12", r"hidden=100 is not divisible by heads=12 \(remainder 4\)"),
        ("llama:layers=2,hidden=96,heads=12,kv_heads=5", "heads=12 is not divisible by kv_heads=5"),
        ("gpt:layers=0,hidden=96,heads=12", "layers=0 must be between 1 and 2,000"),
        ("gpt:layers=-3,hidden=96,heads=12", "layers=-3"),
        ("gpt:layers=2,hidden=0,heads=12", "hidden=0"),
        ("gpt:layers=2,hidden=96,heads=0", "heads=0"),
        ("gpt:layers=99999999,hidden=96,heads=12", "layers=99999999"),
        ("gpt:layers=2,hidden=99999999999999999999,heads=12", "must be between 1 and"),
        ("gpt:layers=2.5,hidden=96,heads=12", "layers=2.5 is not a whole number"),
        ("gpt:layers=two,hidden=96,heads=12", "layers='two' is not a whole number"),
        ("gpt:layers=true,hidden=96,heads=12", "layers=True is not a whole number"),
        ("gpt:layers=2,hidden=96,heads=12,seq=0", "seq=0"),
        ("gpt:layers=2,hidden=96,heads=12,vocab=-1", "vocab=-1"),
        ("gpt:layers=2,hidden=96,heads=12,tied=3", "tied=3 must be true or false"),
        ("gpt:layers=2,hidden=96,heads=12,positions=rotary", "unknown gpt positions 'rotary'"),
        ("gpt:layers=2,hidden=96,heads=12,activation=7", "activation=7 must be gelu or"),
        ("gpt:layers=2,hidden=96,heads=12,positions=rope,rope_fraction=nan", "rope_fraction=nan"),
        ("gpt:layers=2,hidden=96,heads=12,positions=rope,rope_fraction=0.4", "3 rotated elements per head of 8"),
        ("gpt:hidden=96,heads=12", "layers"),
        ("gpt:layers=2,hidden=96,heads=12,depth=3", "depth"),
        ("llama:layers=2,hidden=96,heads=12,window=-1", "window=-1 must be between 0"),
        ("bert:layers=2,hidden=96,heads=12,seq=8,predictions=9", "predictions=9 of seq=8"),
        ("moe:layers=2,hidden=96,heads=12,experts=4,top_k=5,expert_ffn=8", "top_k=5 of experts=4"),
        ("moe:layers=2,hidden=96,heads=12,experts=4,top_k=2,expert_ffn=8,router=hash", "unknown moe router 'hash'"),
        ("deepseek:layers=2,hidden=96,heads=12,experts=4,top_k=2,expert_ffn=8,ffn=8,rope_dim=3", "rope_dim=3"),
        ("vit:layers=2,hidden=96,heads=12,patch=16,image=100", "image=100 is not divisible by patch=16"),
        ("vit:layers=2,hidden=96,heads=12,image=1048576,patch=1", "seq="),
        ("t5:layers=2,hidden=100,heads=12", "hidden=100 is not divisible"),
        ("t5:layers=2,hidden=96,heads=12,activation=tanh", "unknown t5 activation 'tanh'"),
        ("t5:layers=2,hidden=96,heads=12,tied=maybe", "tied='maybe' must be true or false"),
        ("transformer-xl:layers=2,hidden=97,heads=12", "hidden=97 is not divisible"),
        ("transformer-xl:layers=2,hidden=96,heads=12,divisor=5", "hidden=96 is not divisible by"),
        ("transformer-xl:layers=2,hidden=96,heads=12,vocab=1000", "must rise from above 0 to below vocab=1000"),
        ("transformer-xl:layers=2,hidden=96,heads=12,cutoffs=7", "cutoffs=7"),
        ("transformer-xl:layers=2,hidden=96,heads=12,seq=2", "seq=2"),
        ("nmt:layers=2,hidden=0", "hidden=0"),
    ],
)
def test_impossible_sizes_are_refused_in_one_line(spec: str, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        build(spec)
    assert "\n" not in str(caught.value)


def test_defaults_are_those_of_the_field() -> None:
    config = llama(layers=1, hidden=4096, heads=32).module.config
    assert (config.layer.ffn, config.layer.kv_heads, config.layer.head_dim) == (11008, 32, 128)
    for builder in (gpt, mpt, bert, vit):
        module = builder(layers=1, hidden=64, heads=4).module
        assert isinstance(module, Transformer)
        assert (module.config.layer.ffn, module.config.layer.kv_heads) == (256, 4)
    latent = deepseek(layers=1, hidden=64, heads=4, experts=4, top_k=2, expert_ffn=8, ffn=16).module.config.layer.latent
    assert latent is not None and (latent.q_rank, latent.kv_rank, latent.rope_dim) == (1536, 512, 64)
