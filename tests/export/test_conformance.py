"""What holds for every exporter: degrees and batch are found again, or the strategy is refused in one line."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import CNN, LLAMA, request_of
from tests.export.reading import degrees_in, names_in, read_export
from traincast import Request, Strategy, StrategyError, UnknownNameError
from traincast.export import FRAMEWORKS, export
from traincast.strategy import Slot
from traincast.strategy.prepare import prepare
from traincast.strategy.schedules.one_f_one_b import gpipe

MOE = "moe:layers=4,hidden=256,heads=8,kv_heads=4,experts=8,top_k=2,expert_ffn=512,vocab=1000,seq=128"

DENSE = {
    "dp=1": "megatron torchtitan deepspeed nanotron",
    "dp=8,microbatches=1": "megatron torchtitan nanotron",
    "dp=8,micro_batch=1": "megatron nanotron",
    "dp=8,sync_each,micro_batch=1": "torchtitan",
    "dp=8,zero=1,micro_batch=1": "megatron deepspeed nanotron",
    "dp=8,zero=2,micro_batch=1": "megatron deepspeed",
    "dp=8,zero=3,micro_batch=1": "megatron torchtitan deepspeed",
    "dp=8,zero=3,prefetch=2,micro_batch=1": "megatron deepspeed",
    "dp=8,zero=3,shard=2,micro_batch=1": "megatron torchtitan",
    "dp=8,zero=3,shard=1,micro_batch=1": "megatron",
    "dp=8,zero=1,shard=2,micro_batch=1": "megatron",
    "dp=8,zero=3,reshard=false,micro_batch=1": "",
    "dp=8,zero=3,reshard=false,sync_each,micro_batch=1": "torchtitan deepspeed",
    "tp=4,micro_batch=2": "megatron deepspeed nanotron",
    "dp=2,tp=4,zero=1,micro_batch=2": "megatron deepspeed nanotron",
    "dp=2,tp=4,sp,zero=1,micro_batch=2": "megatron nanotron",
    "dp=2,tp=4,sp,zero=3,micro_batch=2": "megatron torchtitan",
    "dp=2,tp=4,zero=3,micro_batch=2": "megatron",
    "tp=8,zero=1,micro_batch=2": "megatron deepspeed",
    "dp=2,pp=4,micro_batch=1": "megatron nanotron",
    "dp=2,pp=4,zero=1,micro_batch=1": "megatron deepspeed nanotron",
    "dp=2,pp=4,zero=2,micro_batch=1": "",
    "dp=2,pp=4,zero=3,micro_batch=1": "torchtitan",
    "dp=2,pp=4,zero=3,micro_batch=4": "",
    "dp=2,pp=4,zero=1,micro_batch=4": "megatron deepspeed",
    "dp=2,pp=4,zero=3,schedule=gpipe,micro_batch=4": "torchtitan",
    "pp=2,vp=2,micro_batch=2": "megatron",
    "dp=2,pp=2,vp=2,zero=3,micro_batch=2": "torchtitan",
    "dp=2,pp=2,vp=2,zero=1,schedule=interleaved,micro_batch=2": "megatron",
    "dp=2,pp=2,vp=2,zero=3,schedule=interleaved,micro_batch=2": "torchtitan",
    "dp=2,pp=2,vp=2,zero=3,schedule=breadth-first,micro_batch=2": "torchtitan",
    "pp=4,schedule=gpipe,micro_batch=2": "nanotron",
    "dp=2,pp=4,zero=3,schedule=gpipe,micro_batch=2": "torchtitan",
    "dp=2,pp=2,zero=3,schedule=zb-v,micro_batch=2": "torchtitan",
    "pp=4,schedule=zb-h1,micro_batch=2": "",
    "pp=2,schedule=dualpipe,micro_batch=2": "",
    "pp=3,layers=2/1/1,micro_batch=2": "megatron",
    "dp=2,pp=3,zero=3,layers=2/1/1,micro_batch=2": "torchtitan",
    "dp=2,cp=4,zero=1,micro_batch=1": "megatron deepspeed",
    "dp=2,cp=4,zero=3,context=ring,micro_batch=1": "megatron torchtitan deepspeed",
    "dp=2,tp=2,pp=2,cp=2,sp,zero=3,micro_batch=1": "torchtitan",
    "dp=2,tp=2,pp=2,cp=2,sp,zero=1,micro_batch=1": "megatron",
    "dp=8,zero=1,recompute=full,micro_batch=2": "megatron deepspeed nanotron",
    "dp=8,zero=3,recompute=full,micro_batch=2": "megatron torchtitan deepspeed",
    "dp=8,zero=3,recompute=full,recompute_every=2,micro_batch=2": "megatron torchtitan deepspeed",
    "dp=8,zero=3,recompute=selective,micro_batch=2": "megatron torchtitan deepspeed",
    "dp=8,zero=1,offload=optimizer,micro_batch=2": "megatron deepspeed",
    "dp=8,offload=optimizer,micro_batch=2": "",
    "dp=8,zero=3,offload=optimizer,micro_batch=2": "megatron torchtitan deepspeed",
    "dp=8,offload=activations,micro_batch=2": "megatron",
    "dp=8,zero=1,offload=activations,recompute=full,micro_batch=2": "deepspeed",
    "dp=8,servers=1,micro_batch=2": "",
    "dp=8,compression=0.1,micro_batch=2": "",
}
"""Strategies of a dense model, with the frameworks that can run them."""
MIXTURES = {
    "dp=8,zero=1,micro_batch=1": "megatron deepspeed nanotron",
    "dp=8,ep=4,zero=1,micro_batch=1": "megatron deepspeed",
    "dp=8,ep=4,zero=3,micro_batch=1": "megatron torchtitan deepspeed",
    "dp=4,tp=2,zero=1,micro_batch=1": "megatron deepspeed",
    "dp=4,tp=2,sp,ep=8,etp=1,zero=3,micro_batch=1": "megatron torchtitan",
    "dp=4,tp=2,sp,ep=4,etp=2,zero=3,micro_batch=1": "megatron torchtitan",
    "dp=4,tp=2,sp,ep=4,etp=2,zero=1,micro_batch=1": "megatron",
    "dp=4,tp=2,sp,ep=4,zero=1,micro_batch=1": "megatron",
    "dp=2,cp=4,ep=4,zero=1,micro_batch=1": "megatron",
    "dp=8,ep=4,capacity=1.5,zero=1,micro_batch=1": "megatron",
    "dp=8,ep=8,zero=1,shard=4,micro_batch=1": "",
    "dp=2,pp=4,ep=2,zero=3,micro_batch=1": "",
}
"""The same for a mixture of experts."""
CASES = [(text, LLAMA, fits) for text, fits in DENSE.items()] + [(text, MOE, fits) for text, fits in MIXTURES.items()]


def check(request: Request, framework: str) -> None:
    """Degrees and batch of ``request`` are found again in what is written for ``framework``."""
    strategy = request.strategy
    text = export(request, framework)
    assert text.endswith("\n")
    found = degrees_in(read_export(text, framework), framework, request.cluster.num_devices)
    assert found == {
        "dp": strategy.dp,
        "tp": strategy.tp,
        "pp": strategy.pp,
        "cp": strategy.cp,
        "ep": strategy.ep,
        "micro": strategy.micro_batch(request.global_batch),
        "steps": strategy.num_microbatches,
        "whole": request.global_batch,
    }
    assert found["micro"] * found["steps"] * found["dp"] == found["whole"]
    check_fields(text, framework)


def check_fields(text: str, framework: str) -> None:
    """Every setting is one that the framework has, with a value that it takes."""
    table = fields_of(framework)
    for name, value in names_in(text, framework):
        assert name in table, f"{framework} {FRAMEWORKS[framework].release} has no {name}"
        assert holds(table[name], value), f"{name} = {value!r} where {framework} takes {table[name]}"


@cache
def fields_of(framework: str) -> dict[str, str]:
    """What ``benchmarks.exporters --fields`` found in the release that the exporter names."""
    stated = json.loads((Path(__file__).parent / "fields" / f"{framework}.json").read_text(encoding="utf-8"))
    assert stated["release"] == FRAMEWORKS[framework].release, "run python -m benchmarks.exporters --fields"
    fields: dict[str, str] = stated["fields"]
    return fields


def holds(kind: str, value: object) -> bool:
    """Whether a field of that kind takes a value; on a command line all values are texts, a flag has none."""
    match kind:
        case "any":
            return True
        case "flag":
            return value == ""
        case "bool" | "str":
            return type(value).__name__ == kind
        case "int":
            return type(value) is int or (isinstance(value, str) and value.isdigit())
        case "float":
            return isinstance(value, float | int) or float(str(value)) >= 0
        case _:
            return str(value) in kind.split("|")


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(("text", "model", "fits"), CASES, ids=[text for text, _, _ in CASES])
def test_a_strategy_is_found_again_or_refused_in_one_line(text: str, model: str, fits: str, framework: str) -> None:
    request = request_of(text, model=model, global_batch=16)
    if framework in fits.split():
        check(request, framework)
        return
    with pytest.raises(StrategyError) as refused:
        export(request, framework)
    assert "\n" not in str(refused.value)
    assert "cannot be written for" in str(refused.value)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    framework=st.sampled_from(sorted(FRAMEWORKS)),
    dp=st.sampled_from([1, 2, 4, 8]),
    tp=st.sampled_from([1, 2, 4]),
    pp=st.sampled_from([1, 2, 4]),
    cp=st.sampled_from([1, 2]),
    zero=st.sampled_from([0, 1, 2, 3]),
    parallel=st.booleans(),
    recompute=st.sampled_from(["none", "selective", "full"]),
    microbatches=st.sampled_from([4, 8]),
    samples=st.sampled_from([1, 2]),
)
def test_any_legal_strategy_is_found_again_or_refused(  # noqa: PLR0917
    framework: str,
    dp: int,
    tp: int,
    pp: int,
    cp: int,
    zero: int,
    parallel: bool,
    recompute: str,
    microbatches: int,
    samples: int,
) -> None:
    strategy = Strategy(
        dp=dp,
        tp=tp,
        pp=pp,
        cp=cp,
        zero=zero,  # type: ignore[arg-type]
        sequence_parallel=parallel and tp > 1,
        recompute=recompute,
        num_microbatches=microbatches,
    )
    request = request_of(strategy, model=LLAMA, global_batch=dp * microbatches * samples)
    prepare(request)
    try:
        check(request, framework)
    except StrategyError as refused:
        assert "\n" not in str(refused)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("precision", ["fp32", "tf32", "amp", "amp-bf16", "fp16", "bf16", "fp8", "nvfp4"])
def test_a_precision_is_written_or_refused(framework: str, precision: str) -> None:
    known = {
        "megatron": {"fp32", "tf32", "fp16", "bf16", "fp8", "nvfp4"},
        "torchtitan": {"fp32", "tf32", "amp-bf16", "bf16", "fp8"},
        "deepspeed": {"fp32", "tf32", "amp", "amp-bf16", "fp16", "bf16"},
        "nanotron": {"fp32", "fp16", "bf16"},
    }
    request = request_of("dp=1,micro_batch=2", model=LLAMA, precision=precision)
    if precision in known[framework]:
        check(request, framework)
    else:
        with pytest.raises(StrategyError, match=f"precision {precision} cannot be written"):
            export(request, framework)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_convolutional_network_is_for_deepspeed_alone(framework: str) -> None:
    request = request_of("dp=4,pp=2,micro_batch=1", model=CNN, precision="amp")
    if framework == "deepspeed":
        check(request, framework)
    else:
        with pytest.raises(StrategyError, match="trains language models"):
            export(request, framework)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (
            Strategy(tp=2, num_microbatches=4, shard_rules=(("*.mlp.up", "column"), ("*.mlp.down", "row"))),
            "2 shard rules with tp=2",
        ),
        (
            Strategy(pp=2, num_microbatches=4, schedule="tests.export.test_conformance:own"),
            "does not know your own schedule",
        ),
    ],
)
def test_what_has_no_name_anywhere_is_refused(framework: str, strategy: Strategy, message: str) -> None:
    with pytest.raises(StrategyError, match=message):
        export(request_of(strategy, model=LLAMA), framework)


def own(stages: int, microbatches: int, virtual: int) -> list[list[Slot]]:
    """GPipe by another name."""
    return gpipe(stages, microbatches, virtual)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_strategy_that_cannot_be_forecast_is_refused(framework: str) -> None:
    request = request_of("dp=1,pp=8,micro_batch=2", model=LLAMA)
    with pytest.raises(StrategyError, match="has only 4 blocks"):
        export(request, framework)


def test_an_unknown_framework_lists_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="did you mean megatron"):
        export(request_of("dp=1"), "megatorn")
    assert sorted(FRAMEWORKS) == ["deepspeed", "megatron", "nanotron", "torchtitan"]
