"""Runtimes as files: what is read, extended, found by name, and refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from traincast import Operator, Request, RequestError, capture, load_cluster, load_runtime
from traincast.strategy import find_runtime, load_precision, lower, parse_strategy, runtime_names
from traincast.strategy.prepare import fusions_of
from traincast.strategy.program.recompute import RECOMPUTATIONS


def test_a_users_file_extends_a_bundled_runtime(tmp_path: Path) -> None:
    path = tmp_path / "ours.toml"
    text = 'extends = "megatron"\n[exchange]\nbucket_bytes = 40_000_000\noverlap_sends = false\n'
    path.write_text(text, encoding="utf-8")
    made, parent = load_runtime(str(path)), load_runtime("megatron")
    assert made.name == "ours"
    assert (made.exchange.bucket_bytes, made.exchange.overlap_sends) == (40e6, False)
    assert replace(parent, name="ours", exchange=made.exchange) == made
    changed = {"bucket_bytes": 40e6, "overlap_sends": False}
    assert parent.patched(exchange=changed).exchange == made.exchange


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[exchange]\nbucket_byte = 3", "mine.toml: exchange has unknown key 'bucket_byte': did you mean bucket_bytes"),
        (
            "[exchange]\nbucket_bytes = 'many'",
            "mine.toml: exchange.bucket_bytes is 'many': expected a number from 0 to 1e",
        ),
        ("[exchange]\nbucket_bytes = -1", "expected a number from 0"),
        ("[exchange]\nbucket_bytes = inf", "expected a number from 0"),
        ("[exchange]\nbucket_bytes = nan", "expected a number from 0"),
        ("[exchange]\noverlap_gradients = 1", "expected true or false"),
        ("[kernels]\nattention = 'fast'", "expected one of flash, flash-1, flash-2, cudnn-8, unfused, eager"),
        (
            "[kernels]\nfusions = ['all']",
            r"fusions\[0\] is 'all': expected one of norm, batch_norm, half_batch_norm, elementwise, loss, gradients",
        ),
        ("[kernels]\nfusions = 'norm'", "expected a list of words of norm, batch_norm, half_batch_norm, elementwise"),
        ("[defaults]\nzero = 4", "expected one of 0, 1, 2, 3"),
        ("[defaults]\nzero = true", "expected one of 0, 1, 2, 3"),
        ("[defaults]\ngradient_dtype = 'fp8'", "expected one of '', fp32, bf16, fp16"),
        ("[defaults]\nrecompute = 'half'", f"recompute is 'half': expected one of {', '.join(RECOMPUTATIONS)}$"),
        ("[defaults]\nrecompute = 1", f"recompute is 1: expected one of {', '.join(RECOMPUTATIONS)}$"),
        ("bucket_bytes = 3", r"mine.toml: bucket_bytes stands in \[exchange\] now: \[exchange\] bucket_bytes = …"),
        ("operator_launches = 3", r"operator_launches stands in \[launches\] now: \[launches\] operator = …"),
        ("memory_low = 0.7", r"memory_low stands in \[memory\] now: \[memory\] low = …"),
        ("overlap_experts = 0.5", r"overlap_experts stands in \[experts\] now: \[experts\] overlap = …"),
        ("kernels = 'bare'", r"kernels is a table now: \[kernels\] measured_with = …"),
        ("launches = 3", "launches is 3: expected a table with operator, backward, prepared"),
        ("habits = 3", "habits is 3: expected a list of tables"),
        ("extends = 'nothing'", "unknown runtime 'nothing'"),
        ("= 3", "is not valid TOML"),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RequestError, match=said) as caught:
        load_runtime(str(path))
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_an_unknown_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"runtime file .* does not exist"):
        load_runtime(str(tmp_path / "none.toml"))
    with pytest.raises(RequestError, match="unknown runtime 'megatrom': did you mean megatron"):
        load_runtime("megatrom")


@pytest.mark.parametrize(
    ("framework", "name"),
    [
        ("Megatron-LM", "megatron"),
        ("Megatron-Core r0.9", "megatron-bridge"),
        ("Megatron-DeepSpeed", "megatron-deepspeed"),
        ("nanotron", "nanotron"),
        ("composer/FSDP", "fsdp"),
        ("TensorFlow2", "tensorflow"),
        ("PyTorch FSDP 2.x", "fsdp"),
        ("PyTorch Lightning (FSDP)", "fsdp"),
        ("PyTorch FSDP2", "torchtitan"),
        ("HF accelerate + FSDP", "fsdp"),
        ("NeMo (PyTorch)", "megatron-bridge"),
        ("PyTorch 1.13", "pytorch-1"),
        ("PyTorch2.1", "pytorch"),
        ("Megatron-LM 2.5", "megatron-2"),
        ("Megatron-LM 23.04", "megatron"),
        ("MaxText (JAX)", "maxtext"),
        ("T5X (JAX)", "maxtext"),
        ("NeuronX Distributed 2.16.0", "neuronx"),
        ("PyTorch Neuron 2.14.0", "neuronx-1"),
        ("PyTorch Neuron 2.21.0", "neuronx-1"),
        ("optimum-habana multi_card", "optimum-habana"),
    ],
)
def test_a_framework_is_found_as_tables_spell_it(framework: str, name: str) -> None:
    assert find_runtime(framework).name == name


def test_an_unknown_framework_is_refused() -> None:
    with pytest.raises(RequestError, match="unknown framework 'caffe'"):
        find_runtime("caffe")


def test_every_framework_leads_to_its_own_runtime() -> None:
    for name in runtime_names():
        for framework in load_runtime(name).frameworks:
            assert find_runtime(framework).name == name


@pytest.mark.parametrize(("framework", "name"), [("MXNet", "mxnet"), ("PaddlePaddle", "paddle")])
def test_frameworks_of_convolutional_networks_have_runtimes(framework: str, name: str) -> None:
    assert find_runtime(framework).name == name


def test_kernels_for_16_bits_fuse_only_there() -> None:
    runtime = load_runtime("mxnet")
    assert "batch_norm" in fusions_of(runtime, load_precision("amp"))
    assert fusions_of(runtime, load_precision("fp32")) == ("elementwise",)


def test_tensorflow_sorts_the_ids_of_embeddings_and_pytorch_does_not() -> None:
    def marks(runtime: str) -> set[object]:
        request = Request(
            graph=capture("ncf"),
            cluster=load_cluster("dgx-a100"),
            strategy=parse_strategy("dp=8", global_batch=8192),
            runtime=load_runtime(runtime),
            precision=load_precision("fp32"),
            global_batch=8192,
        )
        works = lower(request).plan.works
        return {
            work.attributes.get("ids")
            for work in works
            if isinstance(work, Operator) and work.name == "embedding_dense_backward"
        }

    assert marks("tensorflow") == marks("tensorflow-xla") == {"sorted"}
    assert marks("pytorch") == {None}
