"""What the verbs of ``traincast trace`` are asked: traces, their steps, and what is to be different."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from traincast.ask import HTML, Ask, Batch, Count, File, Files, JsonRecord, Option, option_of

if TYPE_CHECKING:
    from traincast.cluster import Cluster, Device
else:  # in JSON there are words alone
    Cluster = Device = str

_TRACES = Option("A file (.json, .json.gz), a folder with one file for each rank, or several of these.", "TRACE…")
_RANGE = Option(
    "Take the ranges of this name as steps. Default: the profiler's steps, else batches, else the whole trace.", "NAME"
)
_EXECUTION = Option(
    "Take shapes that a trace does not state from PyTorch's execution trace of the same run; once for each rank. "
    "Default: those in the folder of the trace, where they match.",
    "FILE",
    again="",
)


@dataclass(frozen=True, slots=True)
class ShowAsk(JsonRecord):
    """What ``trace show`` is asked."""

    traces: Annotated[Files, _TRACES]
    _: KW_ONLY
    range: Annotated[str | None, _RANGE] = None
    execution_trace: Annotated[Files, _EXECUTION] = ()


@dataclass(frozen=True, slots=True)
class ReplayAsk(JsonRecord):
    """What ``trace replay`` is asked."""

    traces: Annotated[Files, _TRACES]
    _: KW_ONLY
    range: Annotated[str | None, _RANGE] = None
    fit_steps: Annotated[
        Literal["even", "odd"] | None,
        Option("Infer waits between streams from these steps only; the others then judge them.", "even|odd"),
    ] = None
    output: Annotated[
        File | None,
        Option(
            "Write to PATH: the replayed trace (.json, .json.gz; .et for Chakra); a folder, if there are several "
            "ranks.",
            "PATH",
            short="-o",
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class TraceChangesAsk(JsonRecord):
    """What ``trace whatif`` is asked; a change that is None or False leaves the trace as it is."""

    traces: Annotated[Files, _TRACES]
    _: KW_ONLY
    range: Annotated[str | None, _RANGE] = None
    execution_trace: Annotated[Files, _EXECUTION] = ()
    host: Annotated[str | float | None, Option("Hosts run their code twice as fast; `0.5x` is half as fast.", "2x")] = (
        None
    )
    network: Annotated[
        str | float | None,
        Option("Links between ranks are twice as fast; `0.5x` is half as fast. Needs the traces of all ranks.", "2x"),
    ] = None
    no_communication: Annotated[bool, Option("Ranks that do not communicate.")] = False
    overlap: Annotated[bool, Option("Compute does not wait for communication before the step ends.")] = False
    bucket: Annotated[
        str | float | None,
        Option("Gradients exchanged in buckets of this size. Needs the traces of all ranks.", "100MB"),
    ] = None
    amp: Annotated[bool, Option("Mixed precision: products and traffic of kernels in half precision.")] = False
    fuse_optimizer: Annotated[bool, Option("The update of all weights in few kernels.")] = False
    graph: Annotated[bool, Option("Each step launched as one graph.")] = False
    gpu: Annotated[str | Device | None, Option("The same step on another device of the catalog.", "DEVICE")] = None
    loader_workers: Annotated[Count | None, Option("N processes prepare the batches.", "N")] = None
    output: Annotated[
        File | None,
        Option(
            "Write to PATH: the changed trace (.json, .json.gz; .et for Chakra); a folder, if there are several ranks.",
            "PATH",
            short="-o",
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class DiffAsk(JsonRecord):
    """What ``trace diff`` is asked: two traces, or one and what a forecast of it needs to know."""

    before: Annotated[Files, Option("A trace: a file, or a folder with one file for each rank.", "TRACE", whole=True)]
    after: Annotated[Files | None, Option("Another trace, to compare with the first.", "[OTHER]", whole=True)] = None
    _: KW_ONLY
    range: Annotated[str | None, _RANGE] = None
    forecast: Annotated[str | None, Option("Compare TRACE with the forecast of a step of this model.", "MODEL")] = None
    cluster: Annotated[
        str | Cluster | None, Option("The cluster: that of the forecast, a name or a .toml file.", "CLUSTER")
    ] = None
    strategy: Annotated[
        str | None, Option("How to distribute the work over the devices. That of the forecast.", "dp=8,tp=4,…")
    ] = None
    global_batch: Annotated[Batch | None, option_of(Ask, "global_batch")] = None
    seq: Annotated[Count | None, option_of(Ask, "seq")] = None
    precision: Annotated[
        str | None,
        Option(
            "Number formats of the training step: fp32, amp, bf16 or another of `predict`. Default: that of the trace, "
            "if it tells.",
            "NAME",
        ),
    ] = None
    html: Annotated[File | None, HTML] = None


@dataclass(frozen=True, slots=True)
class LearnAsk(JsonRecord):
    """What ``trace learn`` is asked."""

    traces: Annotated[Files, _TRACES]
    _: KW_ONLY
    output: Annotated[
        File | None,
        Option("Write to PATH: a folder of events, for `predict --events` and `search --events`.", "PATH", short="-o"),
    ] = None
    range: Annotated[str | None, _RANGE] = None
    execution_trace: Annotated[Files, _EXECUTION] = ()
    device: Annotated[
        str | Device | None,
        Option("Where the traces were recorded, if they do not say. Default: a processor.", "DEVICE"),
    ] = None
