"""The prose of docs/accuracy.md that does not depend on any figure."""
# ruff: noqa: E501 (lines of tables)

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

HEAD: Final = """\
# Accuracy

The errors of forecasts of measured training steps: by source, model, GPU, scale and strategy, with the worst cases.

One command writes this page and its plots:

```sh
python -m benchmarks.accuracy --steps steps.parquet --dp-steps dp_steps.parquet
```

For the errors of single operators and collectives, see [their page](operators.md).
"""

COMPARED: Final = """\
## What is compared

Training steps that others measured and published. The tables of measured runs are not part of the project;
[NOTICE](../NOTICE) names the sources, and `traincast validate` compares forecasts with a table of your own. Each row
becomes a request by its own columns: device, machine, framework, precision, strategy, batch. A row that cannot be
forecast is skipped, and the reason is listed below.

- **zero-shot**: physics and measured operators. Constants and learned times come from measurements of single
  operators and collectives; nothing is fitted to training steps, with two exceptions. The host's time per operator,
  layer and message under `nanotron` and `megatron-deepspeed` was set by hand from runs of `ultrascale` and
  `vtrain_single`, so these sources and `vtrain_multi` are not independent of these [runtimes](runtimes.md). And these
  rows guided corrections of the physics: FlashAttention 2 is slow on Hopper, grouped products reach 0.42 of the rate
  of batched ones, 1 × 1 convolutions are products, depthwise convolutions are slow, logits stay on the stage of the
  loss, and old releases of Megatron-LM lack some kernels.
- Two models of `neusight_single` ran with other dimensions than its table states (`gpt3_xl`, `switchxl4`). They are
  forecast with the dimensions of its configurations and operator shapes.
- **calibrated**: runs of one source on one GPU under one framework form a group. Every run is forecast by a
  calibration fitted to other runs of its group, with all repeats of its own configuration left out: 5 folds, seed 0.
- **unseen models**: the same, with all runs of its model left out.
- **a source left out**: no run of the source is used. This is the zero-shot forecast, with an interval from the
  errors of the other sources.
"""

MEMORY: Final = """
Peak memory where it was measured, uncalibrated. Weights, gradients and optimizer states are counted exactly. What a rank
holds beyond them is forecast, and real runs hold x times that amount. In 90 % of 890 runs of nanotron, x is between 0.75
and 1.37; its runtime ships this interval. If runs are held back by model, by degree of an axis or by number of GPUs, 88 to
90 % of them lie inside an interval fitted to the others. All 24 runs of Megatron-LM lie inside the same interval. 42 runs
of Megatron-DeepSpeed hold 1.2 to 2.6 times their forecast, so its runtime has an interval of its own. Frameworks without
measurements get a wider one (0.6 to 2), which is not wide enough for all: runs of two fine-tuning libraries hold up to five
times the forecast beyond their states.
"""

FITS: Final = """
A strategy *fits* if its memory suffices with a probability of 85 %. The table below has the F1 scores of "does not fit" and
of "fits", and the share of runs forecast to fit that failed. The tables of runs say that a run failed, not why, and memory
does not cause every failure. The second row leaves a failure out if another run of the same source succeeded that needs at
least as much memory: model, sequence and micro batch are not smaller, tensor groups and ZeRO stage are not larger, and the
pipeline is the same (`failed_otherwise` in `validate steps --json`; 84 runs of ultrascale). The share in the first row
cannot fall below that of these failures, 4 %, whatever the margin. The margin of 85 % maximises the F1 score of *fits*.
"""

GLOSSARY: Final = """\
| column | meaning |
|---|---|
| runs | rows with a measured time that could be forecast |
| mean error, mean | mean of \\|predicted − measured\\| / measured (MAPE) |
| median error, median | median of the same |
| bias | median of predicted / measured − 1: above 0, forecasts are too slow |
| rank corr. | Spearman correlation of predicted and measured times; 1: forecasts order all runs correctly |
| in interval | share of measured times inside the 90 % interval, which is fitted to other folds or sources; ideally 90 % |
| does-not-fit F1, fits F1 | F1 score of the forecast that a run fails for memory, and that it works; 1 is perfect |
| memory error | mean error of peak memory, where it was measured |

A number in brackets counts the runs behind a figure if they are not all runs of the line: a group of fewer than four
runs is too small to leave any out, and a group with a single model has no unseen one.
"""

ASSUMED: Final = """\
Few sources state everything that a forecast needs. What is not stated is filled in by the rules in the last section of this
page, and `validate` lists it for every row. A number in brackets counts the runs that do not state it.
"""

ADVICE: Final = """\
## How to use these figures

- **Published runs differ among themselves.** Two laboratories that measure the same matrix product differ by 10 % at
  the median; repeats of one training step at scale differ by 5 to 25 %. Sources often do not state the GPU variant, the
  network card, the recomputation or the framework's version, and a forecast has to assume one.
- **Compare strategies, not absolute times.** Errors that two strategies share cancel in a comparison.
- **Look at the interval.** If the intervals of two forecasts overlap much, the order of the two is uncertain.
- **Measure a few runs of your own.** They improve forecasts more than anything here; the learning curves say how many.

## Known weaknesses

- The backward passes of attention and convolution, and memory-bound operators in bf16, were measured on few devices. On
  others their times are analytical.
- Some runs at scale stall, and their configuration does not explain it. A forecast gives the probability, not which runs.
- Runs dominated by their host (small models, small batches, many microbatches) depend on launch costs that differ
  between versions of a framework.
- Communication and compute that overlap are assumed not to slow each other down; on real devices they share memory and
  compute units.
- Mixture-of-experts layers are forecast with balanced experts, unless `imbalance` says otherwise.
- Data loading, stragglers, thermal limits and other users of the network are not part of a forecast step. `validate dp-steps` adds the loading
  of images and sounds where a row says that it fine-tunes a model.
- Some machines are slower on some days. Of 39 runs on V100 with Omni-Path (bigscience-gpt2), 13 took 1.9 to 2.3 times their forecast, equal
  configurations once 125 s and once 225 s. Neither date, framework, size nor notes tell them apart; their authors suspect the network. The
  interval reaches 1.5 times the forecast, so it holds two thirds of these runs.
- Loaders that group texts by length (NVIDIA's LDDL) compute fewer tokens than a row states. Their documentation gives 1.40 to 1.76 times the
  speed, depending on bins that rows do not state; in published runs of NeMo, BERT 4B and 100B gain 1.29. `validate steps` takes the whole length and says so.
- Convolutions vary most between library versions and layouts; their intervals are the widest of the common operators.
- Architectures without published operator measurements get conservative efficiencies and wider intervals.
"""

OWN_RUNS: Final = """\
## Compare with your own runs

Put your runs into a `.csv`, `.csv.gz` or `.parquet` file and run

```sh
traincast validate steps my-steps.csv
traincast validate dp-steps my-dp-steps.csv --json
```

An empty cell or `?` means "not stated". Other columns are ignored.

**`steps`**: one training step of a language model per row.

| column | meaning |
|---|---|
| `source` | errors are grouped by it; it also tells whether a shipped calibration may have been fitted to the row |
| `framework` | as in the `frameworks` of a [runtime](runtimes.md), alone or within a text (`PyTorch FSDP 2.4`) |
| `model` | a name of the zoo; any name if dimensions are stated |
| `n_layers`, `hidden`, `heads`, `kv_heads`, `ffn`, `vocab`, `params_b` | dimensions; parameters in billions |
| `seq` | tokens per sample |
| `gpu`, `hardware`, `n_gpus`, `gpus_per_node`, `interconnect` | device and machine, in any usual spelling |
| `dp`, `tp`, `pp`, `cp`, `ep`, `vp` | degrees |
| `strategy` | all of them in one text instead, as `predict` takes it; what it leaves out may stand in the other columns |
| `zero`, `sp`, `recompute` | 0 to 3; 0 or 1; `none`, `selective` or `full` |
| `schedule` | of the pipeline: `1f1b`, `interleaved`, `gpipe` and so on |
| `micro_batch`, `grad_accum`, `global_batch` | samples per microbatch; microbatches; samples per step |
| `precision` | see below |
| `optimizer` | `adamw`, `sgd` and so on |
| `notes` | "no optimizer" leaves the optimizer out |
| `status` | `ok`, or `failed…` for a run that failed |
| `step_time_s` | measured seconds per step; if empty, computed from `tokens_per_s_per_gpu` |
| `mem_gb`, `mem_unit` | measured peak memory; the unit is GiB (1024³ bytes) unless `mem_unit` is `GB`, `MiB`, `MB` or `B` |

These columns must exist, though cells may be empty: `source`, `gpu`, `n_gpus`, `seq`, `step_time_s`.

The precision is the format of matrix products. `bf16`, `fp16`, `fp32` and `tf32` may be spelled `bfloat16`, `float16`, `half`
and so on. With `amp`, `mixed` or `autocast` in its name, a 16-bit precision keeps fp32 weights. `fp8`, `float8`, `mxfp8` and
`e4m3` with any scaling (`float8 rowwise`, `fp8-delayed`) mean fp8 products; `nvfp4`, `mxfp4` and `fp4` mean nvfp4 products. A
row with any other precision is skipped.

What a row does not state is filled in, and its `assumed` says how:

| not stated | filled in |
|---|---|
| `recompute`, `zero`, `sp` | the default of the runtime |
| `micro_batch` and `grad_accum`; or the whole strategy | the choice of `predict` |
| `framework`, `precision` | the choice of `predict` for the model; `fsdp` for sharded parameters |
| the variant of the device, the network, its adapters, `gpus_per_node` | the most common variant; the usual node of the device |
| `vocab`, `ffn`, `kv_heads` | the default of the family or the model |
| `seq` | the length whose FLOPs per token are `tflops_per_gpu` over `tokens_per_s_per_gpu`, if both are stated; otherwise the default of the model |
| `heads`, `n_layers`, `hidden` | a usual shape with `params_b` parameters that `pp` and `vp` divide, if the name tells the family |
| the width of heads | `hidden` / `heads`, or 128 if only that gives `params_b` |
| `schedule`, `vp`, `ep`, `optimizer` | `1f1b`, or interleaved if `vp` is stated; 1; 1; AdamW |

A row is skipped with the reason if its device or precision is not known, if its global batch is neither stated nor computable,
or if its figures contradict each other: for example `dp`, `micro_batch` and `global_batch`, or a `params_b` that differs from the
dimensions by more than a factor of 1.5.

What a row states is never replaced by a default. If the row contradicts itself and one reading is clear, `assumed` has a sentence
such as `pp contradicts n_gpus: 4, since 4·8·1 ranks exceed 16 GPUs`; otherwise the row is skipped.

The text in `interconnect` may be free: the fastest network in it that is for training counts, so adapters for management or
storage do no harm. `4X EDR` is one port with four lanes, `4x EDR` are four adapters. If it names no network, the one in `hardware`
(`dp-steps`: `system`) counts.

**`dp-steps`**: one data-parallel training step of any other model per row.

| column | meaning |
|---|---|
| `family` | errors are grouped by it, or by `source` if it is empty |
| `model` | a name of the zoo, in any usual spelling |
| `framework`, `container` | the framework; its container's year and month (`21.05`) tells PyTorch 1 from 2 |
| `gpu_model`, `gpu_mem_gb`, `system` | device and machine |
| `n_gpus`, `n_nodes`, `gpus_per_node` | counts |
| `interconnect` | the network between nodes, in any usual spelling (`8x HDR200 IB`, `2 x 100 GbE RoCE`) |
| `precision` | as above |
| `batch_per_gpu`, `grad_accum`, `global_batch` | samples per microbatch and GPU; microbatches; samples per step |
| `seq_len`, `input_resolution` | tokens per sample, for sequence models; `224x224`, for images |
| `parallelism` | rows whose embeddings are model-parallel are skipped |
| `notes` | "no optimizer" leaves the optimizer out; "no TF32" computes fp32 in fp32; `mem=13.9/40.0`, GB in use of all, tells the length of an encoder's texts if `seq_len` is empty; a transformer that would not fit is taken to recompute its layers, unless the notes list how memory was saved |
| `step_time_s`, `microstep_time_s` | measured seconds of a step and of one microbatch, which is compared if `grad_accum` is empty; if both are empty, computed from `throughput_samples_per_s` |

These columns must exist: `model`, `gpu_model`, `n_gpus`, `precision`, `batch_per_gpu`, `step_time_s`.

A table may not name models and schedules that are Python code (`package.module:factory`), because its author could then run
anything on your machine. If you trust the table, `--allow-code` permits it.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """The error of another tool on rows of this page, and where that figure comes from."""

    source: str
    tool: str
    figure: str
    how: str
    dense: bool = False
    """Whether it covers only models without experts."""


_MFU: Final = "one share of the peak rate for all runs of a source, fitted to its other runs"
RIVALS: Final = (
    Rival(source="vtrain_single", tool="vTrain", figure="8.37 %", how="its own claim (Bang et al., MICRO 2024)"),
    Rival(source="vtrain_single", tool="constant MFU", figure="58 %", how=_MFU),
    Rival(source="vtrain_multi", tool="vTrain", figure="14.73 %", how="its own claim (Bang et al., MICRO 2024)"),
    Rival(source="vtrain_multi", tool="Calculon", figure="15.1 %", how="run on these rows (Isaev et al., SC 2023)"),
    Rival(source="vtrain_multi", tool="llm-analysis", figure="24 %", how="run on these rows (Li, 2023)"),
    Rival(source="vtrain_multi", tool="constant MFU", figure="18 %", how=_MFU),
    Rival(source="llm-foundry", tool="constant MFU", figure="24 %", how=_MFU),
    Rival(source="megatron-bridge", tool="constant MFU", figure="18 %", how=_MFU, dense=True),
    Rival(
        source="megatron-bridge",
        tool="another release",
        figure="6 %",
        how="difference of one configuration between two releases: no forecast can be better",
        dense=True,
    ),
    Rival(source="simumax", tool="SimuMax", figure="−13.5 … +0.1 %", how="its own claim, a range"),
    Rival(source="simumax", tool="constant MFU", figure="10 %", how=_MFU, dense=True),
    Rival(
        source="calculon_seqsel",
        tool="Calculon",
        figure="3.65 %",
        how="tuned on all of these runs (Isaev et al., SC 2023)",
    ),
    Rival(source="ultrascale", tool="constant MFU", figure="152 %", how=_MFU),
)
