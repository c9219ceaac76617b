"""Traincast beside other forecasters of language-model training, on the same measured steps.

    python -m benchmarks.peers DATA [--calculon DIR] [--llm-analysis DIR] [--simumax DIR] [--most 60] [--write]

Every table ``steps*.parquet`` below DATA is read by Traincast's own reader, so all forecasters get the same model,
machine, strategy and batch. A peer forecasts the rows that it can express; Traincast forecasts the same rows without
any calibration. DIR is a checkout of the peer; without it, the peer is used if it is installed, and skipped otherwise.
At most ``--most`` rows of a source are drawn, with a fixed seed. Nothing of a peer is part of this project: the
adapters call its public functions.

What the adapters assume, with the aim of the best fair setting of each peer:

**All but 40 % MFU** forecast dense decoders (GPT, MPT, Llama and models of the same layers) with data, tensor and
pipeline parallelism in equal shares on GPUs, with an optimizer step. Rows with experts, context parallelism,
offloading, adapters, uneven stages or other accelerators are left out.

**40 % MFU** is the rule of thumb: model FLOPs (attention without its mask) over 40 % of the datasheet's dense rate of
all GPUs, in the format in which linear layers compute.

**Calculon** uses its system files for the A100 and the H100. For other GPUs the efficiencies of the H100's file hold
(of the A100's on earlier GPUs), with the rates of Traincast's catalog. The bandwidths of links are those of the row's
cluster, their efficiencies those of the file; tensor groups stay in a node if they fit, then replicas, then stages.
Memory is without limit, so that no row is refused. A block of Calculon has two matrices in its feed-forward part and as
many key heads as heads: its feed-forward width is set so that the block has the weights of the model's block. Gradients
overlap with backward, and tensor-parallel traffic with products ("ring"), if they do so in the row's framework. It
knows sharded optimizers, not sharded weights: rows with ZeRO-3 or FSDP are left out, and nothing after the last block
is counted.

**llm-analysis** uses its GPU files where it has one, else the figures of Traincast's catalog, and the efficiencies that
its documents recommend for training: 0.5 of the FLOPs, 0.9 of the memory bandwidth. Groups over which ZeRO shards are
``dp_size``. It has no pipeline bubble, and tensor groups must fit in a node.

**SimuMax** uses its system file for the B200, whose efficiencies also hold for GPUs of the same architecture. For
others, the efficiencies of operators and memory are those of its file for the A100 (on the H100 they are nearer than
those of the B200), those of NVLink are the B200's; rates and bandwidths are those of Traincast's catalog. It knows ZeRO
up to stage 2, stages of equally many layers, and 16-bit or fp8 products (its file for the B200 has no fp8).
"""
