"""What scripts of fine-tuning do with a dataset: lengths, frozen parts, packing and loaders."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.measured.asking import dp_request
from tests.measured.test_dp_steps import ROW
from traincast import load_runtime
from traincast.graph import OpKind
from traincast.measured.dp_steps import read_row, read_run
from traincast.measured.recipes import grouped_by_length, loading_s, packed_tokens, recipe_of
from traincast.measured.tuning.graph import packed_graph
from traincast.tables import Row
from traincast.validating.steps import validate_dp_steps

GAUDI: Row = {
    "family": "fine-tune",
    "model": "vit_base_patch16_224_in21k",
    "framework": "optimum-habana multi_card",
    "gpu_model": "Gaudi2 (HL-225)",
    "n_gpus": 8,
    "gpus_per_node": 8,
    "precision": "bf16",
    "batch_per_gpu": 100,
    "global_batch": 800,
    "step_time_s": 0.12,
    "notes": "a short fine-tune on cifar10",
}


@pytest.mark.long(but=1)
@pytest.mark.parametrize(("model", "dataset", "tokens"), [
    ("gemma_2b_it", "wikitext", 1024),
    ("roberta_base", "wikitext", 512),
    ("gpt_neox_20b", "wikitext", 1024),
    ("albert_large_v2", "mrpc", 128),
])  # fmt: skip
def test_a_length_that_is_not_stated_is_the_one_that_the_script_cuts_to(model: str, dataset: str, tokens: int) -> None:
    row = {**GAUDI, "model": model, "batch_per_gpu": 2, "global_batch": 16, "notes": f"a short fine-tune on {dataset}"}
    assert dp_request(row).graph.tokens_per_sample == tokens


def test_a_stated_length_stands() -> None:
    row = {**GAUDI, "model": "gpt2", "seq_len": 256, "notes": "a short fine-tune on wikitext"}
    assert dp_request(row).graph.tokens_per_sample == 256


@pytest.mark.long(guard="test_a_length_that_is_not_stated_is_the_one_that_the_script_cuts_to")
def test_answers_and_sounds_have_the_lengths_of_their_script() -> None:
    answers = dp_request({**GAUDI, "model": "t5_small", "notes": "cnn_dailymail"}).graph
    assert "target_seq=128" in answers.name
    assert answers.tokens_per_sample == 1024
    sounds = dp_request({**GAUDI, "model": "wav2vec2_base", "notes": "fine-tune on common_language"}).graph
    assert "samples=128000" in sounds.name


def test_one_loader_prepares_the_samples_of_a_device_and_no_step_is_shorter(tmp_path: Path) -> None:
    run = read_run(0, GAUDI)
    assert run.loading_s == pytest.approx(100 * 1.1e-3)
    assert "loaders not stated: one process per device" in run.assumed
    path = tmp_path / "rows.csv"
    path.write_text(",".join(GAUDI) + "\n" + ",".join(str(value) for value in GAUDI.values()) + "\n", encoding="utf-8")
    (row,) = validate_dp_steps(path, calibrated=False).rows
    assert row.predicted == pytest.approx(0.11)
    assert row.low is not None
    assert row.high is not None
    assert row.low <= 0.12 <= row.high


@pytest.mark.parametrize(("family", "architecture", "notes", "seconds"), [
    ("vit", "neuron", "fine-tuning", 0.55),
    ("clip", "gaudi", "fine-tune on coco", 0.0),
    ("clip", "neuron", "fine-tune on coco", 0.55),
    ("vit", "neuron", "p_core leaves out data IO", 0.0),
    ("bert", "neuron", "fine-tuning", 0.0),
])  # fmt: skip
def test_loaders_matter_where_images_are_decoded_on_the_host(
    family: str, architecture: str, notes: str, seconds: float
) -> None:
    found = loading_s({"notes": notes}, family=family, architecture=architecture, batch=100)
    assert found == pytest.approx(seconds)


def test_a_script_may_train_the_head_only() -> None:
    row = {**GAUDI, "model": "protst_esm1b_for_sequential_classification", "notes": "prost-sequence-classification"}
    reading = read_row({**row, "batch_per_gpu": 2, "global_batch": 16})
    assert 0 < reading.request.graph.num_trainable_parameters < 0.01 * reading.request.graph.num_parameters
    assert "the script of this dataset trains the head only" in reading.assumed


def test_fine_tuning_that_no_device_could_hold_trains_adapters() -> None:
    row = {**GAUDI, "model": "llama_7b", "seq_len": 128, "batch_per_gpu": 2, "global_batch": 16, "notes": "fine-tune"}
    assert dp_request(row).graph.num_trainable_parameters < 1e7
    sharded = dp_request({**row, "notes": "fine-tune; zero_3"})
    assert sharded.graph.num_trainable_parameters == sharded.graph.num_parameters


def test_deepspeed_shards_as_much_as_a_model_needs() -> None:
    row = {**GAUDI, "framework": "optimum-habana deepspeed", "seq_len": 128, "notes": "", "batch_per_gpu": 2}
    small = dp_request({**row, "model": "gpt2", "global_batch": 16})
    large = dp_request({**row, "model": "codellama-13b", "global_batch": 16})
    assert (small.strategy.zero, large.strategy.zero) == (0, 1)
    assert small.runtime.name == "optimum-habana-deepspeed"


def test_attention_is_written_out_if_the_release_of_pytorch_is_not_stated() -> None:
    row = {**ROW, "container": None, "n_gpus": 8, "gpus_per_node": 8}
    assert dp_request({**row, "model": "cpm"}).runtime.kernels.attention == "eager"
    assert dp_request({**row, "model": "vit-base"}).runtime.name == "pytorch"
    assert dp_request(row).runtime.name == "pytorch"


def test_packed_texts_see_only_themselves_in_megatron() -> None:
    assert packed_tokens({"notes": "SFT; packed sequences (SQuAD packed to 4096)"}) == 200
    assert packed_tokens({"notes": "SQuAD"}) == packed_tokens({"notes": "packed alpaca"}) == 0
    graph = dp_request({**GAUDI, "model": "gpt2", "seq_len": 1024, "notes": ""}).graph
    packed = packed_graph(graph, load_runtime("megatron-bridge"), 200)
    windows = {op.attributes.get("window") for op, _ in packed if op.kind is OpKind.ATTENTION}
    assert windows == {228}
    assert packed.num_parameters == graph.num_parameters
    assert packed_graph(graph, load_runtime("hf-trainer"), 200) is graph


def test_a_dataset_without_a_recipe_has_none() -> None:
    assert recipe_of({"notes": "an unknown dataset"}) is None
    first = recipe_of({"notes": "fine-tune on squad_v2"})
    assert first is not None
    assert first.target == 30


def test_a_loader_that_groups_texts_by_length_is_named_if_the_row_says_so() -> None:
    assert grouped_by_length({"notes": "data loader with LDDL"}).startswith("bins of the loader")
    assert not grouped_by_length({"notes": "data loader without LDDL"})
