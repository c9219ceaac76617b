"""The prose of docs/accuracy.md: what does not depend on any figure."""
# ruff: noqa: E501 (lines of tables)

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

HEAD: Final = """\
# Accuracy

How far forecasts are from measured training steps: per source, model, GPU, scale and strategy, with the worst misses.

This page and its plots are written by one command, and by nothing else:

```sh
python -m benchmarks.accuracy --steps steps.parquet --dp-steps dp_steps.parquet
```

[Accuracy of single operators and collectives](operators.md) has the errors of what a step is made of.
"""

COMPARED: Final = """\
## What is compared

Training steps that others measured and published. The tables of measured runs are not part of the project;
[NOTICE](../NOTICE) names the sources, and `traincast validate` compares with a table of your own. Each row becomes a
request by its own columns: device, machine, framework, precision, strategy, batch. A row that cannot be forecast is
skipped with its reason, never dropped in silence.

- **zero-shot**: physics and measured operators. Constants and learned times come from measurements of single
  operators and collectives; nothing is fitted to training steps. Exceptions: what hosts pay per operator, layer
  and message under `nanotron` and `megatron-deepspeed` was set by hand to what runs of `ultrascale` and
  `vtrain_single` show, so those sources and `vtrain_multi` are not independent of these [habits](runtimes.md). And the
  rows were looked at while physics was mended: that FlashAttention 2 is slow on Hopper, that grouped products reach
  0.42 of batched ones, that 1 × 1 convolutions are products and depthwise ones slow, that logits stay on the stage of
  the loss, which kernels old releases of Megatron-LM had.
- Two models of `neusight_single` ran with other dimensions than its table states (`gpt3_xl`, `switchxl4`); they are
  forecast as its configurations and operator shapes say.
- **calibrated**: runs of one source on one GPU under one framework are a group. Every run is forecast by a
  calibration fitted to other runs of its group, with all repeats of its own configuration left out: 5 folds, seed 0.
- **unseen models**: the same, with all runs of its model left out.
- **a source left out**: nothing of the whole source is used. That is the zero-shot forecast, with an interval from
  the errors of the other sources.
"""

MEMORY: Final = """
Peak memory where it was measured, uncalibrated. Weights, gradients and optimizer states are counted exactly; what a rank
holds beyond them is forecast, and real runs hold x times as much. Of 890 runs of nanotron x is between 0.75 and 1.37 in
90 %, which is the interval that its runtime ships. Held back by model, by degree of each axis or by number of GPUs, 88 to
90 % of runs lie inside an interval that the others gave. 24 runs of Megatron-LM lie inside the same one; 42 of
Megatron-DeepSpeed hold 1.2 to 2.6 times their forecast, which has an interval of its own; frameworks that nobody measured
get a wider one (0.6 to 2). It is not wide enough for every framework: runs of two fine-tuning libraries hold up to five
times as much beyond their states.
"""

FITS: Final = """
A strategy *fits* if its memory suffices with a probability of 85 %. Below is how well runs that worked are told from
runs that failed, by the F1 of either; and the share of runs said to fit that failed. Not every failure is one of memory:
the table says that a run failed, not why. A failure is left out of the second row where another run of the same source
worked that needs no less in any respect: model, sequence and micro batch no smaller, tensor groups and ZeRO stage no
larger, the same pipeline (`failed_otherwise` in `validate steps --json`; 84 runs of ultrascale). Whatever the margin, the
share of the first row cannot fall below that of such failures, 4 %. The margin is where the F1 of *fits* is largest.
"""

GLOSSARY: Final = """\
| column | meaning |
|---|---|
| runs | rows with a measured time that could be forecast |
| mean error, mean | mean of \\|predicted − measured\\| / measured (MAPE) |
| median error, median | median of the same |
| bias | median of predicted / measured − 1: above 0, forecasts are too slow |
| rank corr. | Spearman correlation of predicted and measured times: whether the faster of two runs is told from the slower |
| in interval | share of measured times inside the 90 % interval, which comes from other folds or sources; ideally 90 % |
| does-not-fit F1, fits F1 | how well runs that failed are told from runs that worked, as the one or the other; 1 is perfect |
| memory error | mean error of peak memory, where it was measured |

A number in brackets is that of runs, where it is not all of them: fewer than four runs of a group leave nothing to
fit to, and a group with a single model has no unseen one.
"""

ASSUMED: Final = """\
Few sources state everything that a forecast needs. What is left open is filled in as the last section of this page says, and
`validate` lists it for every row. A number in brackets counts the runs that leave that open.
"""

ADVICE: Final = """\
## What to make of it

- **Published runs differ among themselves.** The same matrix product measured by two laboratories differs by 10 % at
  the median; repeats of one training step at scale by 5 to 25 %. Sources often leave out the GPU variant, the network
  card, the recomputation or the framework's version, and a forecast has to assume one.
- **Compare strategies, not digits.** Errors that two strategies share cancel in a comparison.
- **Mind the interval.** If two forecasts' intervals overlap much, the forecast does not tell them apart for sure.
- **A few runs of your own are worth more than anything here.** The learning curves say how many.

## Known weaknesses

- Backward of attention and convolution, and memory-bound operators in bf16, were measured on few devices: elsewhere
  they are analytical.
- Some runs at scale stall for no reason that their configuration shows. A forecast gives the chance of it, not which
  ones.
- Runs dominated by their host (small models, small batches, many microbatches) depend on launch costs that differ
  between versions of a framework.
- Communication and compute that overlap are taken not to slow each other down; on real devices they share memory and
  compute units.
- Mixture-of-experts layers are forecast with balanced experts, unless `imbalance` says otherwise.
- Loading of data, stragglers, thermal limits and other users of the network are not in a step.
- Convolutions vary most between library versions and layouts; their intervals are the widest of the common operators.
- Architectures without published operator measurements get cautious fractions and wider intervals.
"""

OWN_RUNS: Final = """\
## Compare with your own runs

Put your runs into a `.csv`, `.csv.gz` or `.parquet` file and run

```sh
traincast validate steps my-steps.csv
traincast validate dp-steps my-dp-steps.csv --json
```

Blank, or `?`, means not stated. More columns do no harm.

**`steps`**: one training step of a language model per row.

| column | meaning |
|---|---|
| `source` | what errors are grouped by; also tells whether a shipped calibration may have been fitted to the row |
| `framework` | as in the `frameworks` of a [runtime](runtimes.md), alone or within a text (`PyTorch FSDP 2.4`) |
| `model` | a name of the zoo; any name where dimensions are stated |
| `n_layers`, `hidden`, `heads`, `kv_heads`, `ffn`, `vocab`, `params_b` | dimensions; parameters in billions |
| `seq` | tokens per sample |
| `gpu`, `hardware`, `n_gpus`, `gpus_per_node`, `interconnect` | device and machine, in any usual spelling |
| `dp`, `tp`, `pp`, `cp`, `ep`, `vp` | degrees |
| `strategy` | all of them in one text instead, as `predict` takes it |
| `zero`, `sp`, `recompute` | 0 to 3; 0 or 1; `none`, `selective` or `full` |
| `schedule` | of the pipeline: `1f1b`, `interleaved`, `gpipe` and so on |
| `micro_batch`, `grad_accum`, `global_batch` | samples per microbatch; microbatches; samples per step |
| `precision` | see below |
| `optimizer` | `adamw`, `sgd` and so on |
| `notes` | "no optimizer" leaves the optimizer out |
| `status` | `ok`, or `failed…` for a run that did not fit |
| `step_time_s` | measured seconds per step; where it is blank, it follows from `tokens_per_s_per_gpu` |
| `mem_gb`, `mem_unit` | measured peak memory, in GiB (1024³ bytes) unless `mem_unit` says `GB`, `MiB`, `MB` or `B` |

Required columns, blank or not: `source`, `gpu`, `n_gpus`, `seq`, `step_time_s`.

Precisions are read by what they compute in. `bf16`, `fp16`, `fp32` and `tf32` may be spelled `bfloat16`, `float16`, `half` and so on.
With `amp`, `mixed` or `autocast` beside it, a half precision keeps fp32 weights. `fp8`, `float8`, `mxfp8`, `e4m3` in any scaling
(`float8 rowwise`, `fp8-delayed`) are fp8 products; `nvfp4`, `mxfp4`, `fp4` are nvfp4 products. A row with any other
precision is skipped.

What a row leaves open is filled in, and each row's `assumed` says how:

| left open | taken |
|---|---|
| `recompute`, `zero`, `sp` | the habit of the runtime |
| `micro_batch` and `grad_accum`; or the whole strategy | what `predict` chooses |
| `framework`, `precision` | what `predict` takes for such a model; `fsdp` for sharded parameters, `torchtitan` for PyTorch with `tp` or `pp` |
| the variant of the device, the network, `gpus_per_node` | the most common variant; the usual node of the device |
| `seq`, `vocab`, `ffn`, `kv_heads` | the family's or the model's own |
| `heads`, `n_layers`, `hidden` | a usual shape with `params_b` parameters, if the name tells the family |
| `schedule`, `vp`, `ep`, `optimizer` | `1f1b`, or interleaved where `vp` is stated; 1; 1; AdamW |

A row is skipped, with the reason, if its device or precision is not known, its global batch neither stated nor derivable, or its
figures contradict one another. `zero`, microbatches and devices that do not go together are such a contradiction, and so is a
`params_b` that is more than 1.5 times off.

**`dp-steps`**: one data-parallel training step of any other model per row.

| column | meaning |
|---|---|
| `family` | what errors are grouped by (else `source`) |
| `model` | a name of the zoo, in any usual spelling |
| `framework`, `container` | the framework; its container's year and month (`21.05`) tells PyTorch 1 from 2 |
| `gpu_model`, `gpu_mem_gb`, `system` | device and machine |
| `n_gpus`, `n_nodes`, `gpus_per_node` | counts |
| `precision` | as above |
| `batch_per_gpu`, `grad_accum`, `global_batch` | samples per microbatch and GPU; microbatches; samples per step |
| `seq_len`, `input_resolution` | tokens per sample, for sequence models; `224x224`, for images |
| `parallelism` | rows with embedding parallelism are skipped |
| `step_time_s`, `microstep_time_s` | measured seconds per step; of one microbatch, compared where `grad_accum` is blank. Where both are blank, they follow from `throughput_samples_per_s` |

Required: `model`, `gpu_model`, `n_gpus`, `precision`, `batch_per_gpu`, `step_time_s`.

Models and schedules that are Python code (`package.module:factory`) are refused in a table, because whoever wrote the file could then
run anything on your machine. If you trust it, `--allow-code` lets them run.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """What another tool claims or reaches on rows of ours: the figure, and how it came to be."""

    source: str
    tool: str
    figure: str
    how: str
    dense: bool = False
    """Whether it is about the models without experts only."""


_MFU: Final = "one share of the peak rate for all runs of a source, fitted to others of them"
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
        how="how far the same configuration differs between releases: the floor",
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
