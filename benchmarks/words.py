"""The prose of docs/accuracy.md and docs/accuracy-tables.md that does not depend on any figure."""
# ruff: noqa: E501 (lines of tables)

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

HEAD: Final = """\
# Accuracy

How far a forecast is from the run, in two minutes. [All tables](accuracy-tables.md) have the errors by source, model, GPU,
scale and strategy, and the worst cases; [another page](operators.md) those of single operators and collectives.
[Your runs](your-runs.md) says how to compare forecasts with runs of your own.
"""

FIRST_LOOK: Final = """\
## On a run like yours

The honest test is a publisher whose runs nobody here had seen: the whole table is forecast once, before a single row is
read, and the result is kept. Nothing is calibrated. Expect these errors on your own cluster before you have measured
anything on it; the last column is the share of runs inside their 90 % interval:
"""

KNOWN: Final = """\
## On published runs, with and without calibration

Physics and learned operators were improved by looking at these runs, so their zero-shot errors are smaller than those
above. A calibration with a few runs of your own cluster brings
you to the errors called calibrated.
"""

TABLES_HEAD: Final = """\
# Accuracy: all tables

The errors of forecasts of measured training steps: by source, model, GPU, scale and strategy, with the worst cases. Read
[the summary](accuracy.md) first. One command writes both pages and their plots:

```sh
python -m benchmarks.accuracy --steps steps.parquet --dp-steps dp_steps.parquet
```
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
