"""Models of data-parallel steps are found by their names, tasks and notes."""

from __future__ import annotations

import pytest

from tests.measured.asking import dp_request
from tests.measured.test_dp_steps import ROW
from traincast.graph import Phase
from traincast.measured.dp_steps import read_row, read_run
from traincast.measured.models.networks import Named, named_network
from traincast.strategy import lower
from traincast.tables import Row, RowError

SMALL: Row = {**ROW, "n_gpus": 8, "gpus_per_node": 8, "container": None}


@pytest.mark.long(but=4)
@pytest.mark.parametrize(("written", "parameters"), [
    ("temporal-fusion-transformer", 1_617_451),
    ("gpunet-0", 11_885_432),
    ("HuggingFace CLIP-Base fine-tuning", 151_277_313),
    ("swin_base_patch4_window7_224_in22k", 87_768_224),
    ("efficientdet-d0", 3_880_067),
    ("densenet40_k12", 1_019_722),
    ("vit_base_patch16_224_in21k", 86_567_656),
    ("HuggingFace Vision-Perceiver-Conv fine-tuning", 48_646_522),
    ("Imagen-SR1-600M-EffUNet", 605_253_379),
    ("Imagen-base-2B", 2_063_161_091),
])  # fmt: skip
def test_names_of_tables_are_models_of_the_zoo(written: str, parameters: int) -> None:
    assert dp_request({**SMALL, "model": written}).graph.num_parameters == parameters


@pytest.mark.parametrize(("written", "name"), [
    ("convnext_base", "convnext-base"),
    ("ConvNeXt-T", "convnext-tiny"),
    ("convnext_tiny_in22k", "convnext-tiny"),
    ("efficientnetv2_m", "efficientnet-v2-m"),
    ("tf_efficientnetv2_l", "efficientnet-v2-l"),
    ("regnety_16gf", "regnety-16gf"),
    ("regnet_y_3_2gf", "regnety-3.2gf"),
    ("regnet_y_32gf", "regnety-32gf"),
    ("RegNetX-1.6GF", "regnetx-1.6gf"),
    ("regnet_x_16gf", "regnetx-16gf"),
    ("regnety_160", "regnety-16gf"),
    ("deeplabv3_resnet101", "deeplabv3-resnet101"),
    ("YOLOv5l", "yolov5l"),
    ("yolo_v8_m", "yolov8m"),
    ("conformer_l", "conformer-large"),
    ("stable-diffusion-v1-5", "stable-diffusion-v1-5"),
    ("SDXL", "stable-diffusion-xl"),
    ("DeepFM", "deepfm"),
    ("lstm_ptb_medium", "lstm-ptb-medium"),
    ("hubert-base-ls960", "wav2vec2-base"),
    ("Llama_3_2_11B_Vision_Instruct", "llama3.2-11b-vision"),
    ("meta-llama/Llama-3.2-90B-Vision-Instruct", "llama3.2-90b-vision"),
])  # fmt: skip
def test_other_spellings_are_found(written: str, name: str) -> None:
    assert named_network(written) == Named(name)


@pytest.mark.parametrize(("notes", "parameters"), [
    ("a short fine-tune on squad", 66_362_880 + 2 * 769),
    ("a short fine-tune on mrpc", 66_362_880 + 768 * 769 + 2 * 769),
    ("a short fine-tune on wikitext", 66_362_880 + 768 * 769 + 2 * 768 + 30_522),
])  # fmt: skip
def test_the_dataset_tells_what_an_encoder_learns(notes: str, parameters: int) -> None:
    row = {**SMALL, "model": "distilbert_base_uncased", "notes": notes, "seq_len": 128}
    assert dp_request(row).graph.num_parameters == parameters


@pytest.mark.long(guard="test_the_dataset_tells_what_an_encoder_learns")
def test_the_task_tells_the_series_that_tft_learns() -> None:
    more = (963 - 369) * 128
    one, two = (dp_request({**SMALL, "model": "tft", "task": task}).graph for task in ("Electricity", "Traffic"))
    assert two.num_parameters - one.num_parameters == more


def test_embeddings_that_are_spread_are_sharded_tables() -> None:
    row = {**SMALL, "model": "dlrm-small", "parallelism": "hybrid (embeddings model-parallel)"}
    request = read_row(row).request
    assert request.graph.num_parameters == 32_709_138 * 128 + 2_369_921
    assert str(request.strategy) == "dp=8,tables=sharded"
    assert lower(request).memory[0].parts["frozen weights"] == 32_709_138 * 128 * 4 / 8
    assert read_row({**row, "parallelism": "data-parallel"}).request.strategy.tables == "replicated"


def test_a_batch_that_is_not_stated_follows_from_rate_and_time() -> None:
    row = {**SMALL, "batch_per_gpu": None, "throughput_samples_per_s": 358.2, "step_time_s": 0.35734}
    reading = read_row(row)
    assert reading.request.global_batch == 128
    assert "batch_per_gpu not stated: 16" in reading.assumed
    with pytest.raises(RowError, match=r"make 16\.50 samples"):
        read_row({**row, "throughput_samples_per_s": 132 / 0.35734})


def test_notes_tell_sharding_splitting_and_recomputation() -> None:
    row = {**SMALL, "notes": "deepspeed; zero_2; gradient checkpointing"}
    strategy = dp_request(row).strategy
    assert (strategy.dp, strategy.zero, strategy.recompute) == (8, 2, "full")
    split = dp_request({**SMALL, "model": "cpm", "seq_len": 200, "notes": "TP=2; rounded"}).strategy
    assert (split.dp, split.tp) == (4, 2)


def test_a_row_with_adapters_trains_only_them() -> None:
    row = {**SMALL, "model": "cpm", "seq_len": 200, "notes": "LoRA/PEFT"}
    graph = dp_request(row).graph
    assert graph.num_trainable_parameters == 24 * 2 * 16 * (1024 + 1024)
    assert (
        graph.num_parameters - graph.num_trainable_parameters == dp_request({**row, "notes": ""}).graph.num_parameters
    )


@pytest.mark.long(guard="test_a_row_with_adapters_trains_only_them")
def test_adapters_of_a_model_that_sees_are_in_its_language_layers() -> None:
    row = {**SMALL, "model": "Llama_3_2_11B_Vision_Instruct", "seq_len": 512, "notes": "LoRA/PEFT"}
    graph = dp_request(row).graph
    assert {op.scope.partition(".")[0] for op, _ in graph if "adapter" in op.attributes} == {"layers"}
    assert not [op for op, _ in graph if op.phase is Phase.BACKWARD and op.scope.startswith("eye.")]
    assert "adapted parts not stated: those that read text, not images" in read_row(row).assumed


@pytest.mark.parametrize(
    ("framework", "runtime"),
    [
        ("DGL-PyTorch", "dgl"),
        ("PyG", "dgl"),
        ("keras", "tensorflow"),
        ("TF2", "tensorflow"),
        ("tf.keras", "tensorflow"),
        ("TF 1.15", "tensorflow"),
        ("Keras 3 (JAX)", "maxtext"),
        ("jax/flax", "maxtext"),
        ("pytorch-lightning", "pytorch"),
        ("MindSpore", "mindspore"),
        ("OneFlow", "oneflow"),
        ("MXNet Gluon", "mxnet"),
    ],
)
def test_short_names_of_frameworks_are_read(framework: str, runtime: str) -> None:
    assert dp_request({**SMALL, "framework": framework, "container": None}).runtime.name == runtime


@pytest.mark.long(but=2)
@pytest.mark.parametrize(
    ("written", "parameters"),
    [
        ("DeiT-Small", 22.05e6),
        ("vit_s_16", 22.05e6),
        ("swin_t", 28.29e6),
        ("swin_s", 49.6e6),
        ("bert-base-uncased", 110e6),
    ],
)
def test_published_variants_have_their_published_parameters(written: str, parameters: float) -> None:
    found = dp_request({**SMALL, "model": written, "seq_len": 128}).graph.num_parameters
    assert found == pytest.approx(parameters, rel=0.01)


def test_an_lstm_of_the_treebank_without_its_size_is_the_large_one_and_this_is_said() -> None:
    assert named_network("lstm_ptb") == Named(
        "lstm-ptb-large", assumed="size of model 'lstm_ptb' not stated: lstm-ptb-large"
    )


def test_a_model_without_its_size_is_taken_to_have_the_usual_one_and_this_is_said() -> None:
    reading = read_row({**SMALL, "model": "DLRM"})
    assert reading.request.graph.name == "dlrm-small"
    assert "size of model 'DLRM' not stated: dlrm-small" in reading.assumed


@pytest.mark.parametrize(("gpu", "device"), [("TPU v3", "tpu-v3"), ("Ascend 910", "ascend-910")])
def test_older_accelerators_are_known(gpu: str, device: str) -> None:
    row = {**SMALL, "gpu_model": gpu, "gpu_mem_gb": None, "system": "", "precision": "fp16"}
    assert dp_request(row).cluster.device.name == device


def test_tensorflow_on_a_tpu_is_compiled() -> None:
    row = {**SMALL, "gpu_model": "TPU v3", "gpu_mem_gb": None, "system": "", "framework": "TF2", "precision": "bf16"}
    assert dp_request({**row, "xla": None}).runtime.name == "tensorflow-xla"


def test_a_rate_becomes_the_time_of_a_step() -> None:
    row = {k: v for k, v in SMALL.items() if k not in ("step_time_s", "microstep_time_s")}
    assert read_run(0, {**row, "throughput_samples_per_s": 1000.0}).seconds == pytest.approx(8 * 32 / 1000)


def test_fp32_is_tf32_on_a_device_that_has_it() -> None:
    row = {**SMALL, "gpu_model": "A100", "gpu_mem_gb": 80, "system": "DGX A100", "precision": "fp32"}
    assert dp_request(row).precision.name == "tf32"
    assert dp_request({**SMALL, "precision": "fp32"}).precision.name == "fp32"


@pytest.mark.parametrize(("written", "tokens"), [("BERT-Large Ph2 pre-training", 512), ("bert-large", 128)])
def test_the_second_phase_of_pre_training_has_512_tokens(written: str, tokens: int) -> None:
    assert dp_request({**SMALL, "model": written, "seq_len": 128}).graph.tokens_per_sample == tokens
