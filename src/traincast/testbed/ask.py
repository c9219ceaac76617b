"""What the verbs of ``traincast testbed`` are asked: a run, a comparison, or a study."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Final

from traincast.ask import HTML, Ask, Count, File, JsonRecord, Live, Option, Progress, option_of, python_only
from traincast.errors import RequestError
from traincast.profiling.ask import COMPUTE, THREADS
from traincast.testbed.request import LOOPBACK, REAL

STUDY: Final = "testbed-study"
"""The folder of a study that names none."""


def _pair(text: str, option: str, form: str) -> tuple[int, str]:
    rank, equals, value = text.partition("=")
    if not equals or not (rank.isascii() and rank.isdigit()) or not value:
        raise RequestError(f"{option} {text!r}: expected {form}")
    return int(rank), value


def _link(text: str) -> tuple[int, str]:
    return _pair(text, "--link", "RANK=RATE, such as 3=200Mbit")


def _slow(text: str) -> tuple[int, float]:
    rank, value = _pair(text, "--slow", "RANK=FACTOR, such as 3=1.5")
    try:
        factor = float(value)
    except ValueError:
        factor = 0.0
    if not 0.0 < factor < 1e6:
        raise RequestError(f"--slow factor {value!r}: expected a number above 0, such as 1.5")
    return rank, factor


@dataclass(frozen=True, slots=True)
class RunAsk(JsonRecord):
    """What ``testbed run`` is asked: a step, and how it runs on this machine."""

    model: Annotated[str, option_of(Ask, "model")]
    _: KW_ONLY
    ranks: Annotated[Count, Option("Number of ranks. The strategy fills them.", "N")]
    strategy: Annotated[
        str, Option("How to distribute the work over the devices. There is one for each rank.", "dp=8,tp=4,…")
    ]
    global_batch: Annotated[Count, option_of(Ask, "global_batch")]
    output: Annotated[
        File,
        Option(
            "Write to PATH: a folder with the run: its step times, spans, events, trace and cluster file.",
            "PATH",
            short="-o",
        ),
    ]
    seq: Annotated[Count | None, option_of(Ask, "seq")] = None
    compute: Annotated[str, COMPUTE] = REAL
    network: Annotated[
        str,
        Option(
            "Rate of every rank's link, such as 1Gbit (needs root); loopback: the links are not shaped.",
            "RATE|loopback",
        ),
    ] = LOOPBACK
    link: Annotated[
        Mapping[int, str] | None, Option("3=200Mbit: the link of rank 3 has that rate.", "RANK=RATE", read=_link)
    ] = None
    slow: Annotated[
        Mapping[int, float] | None, Option("3=1.5: rank 3 computes 1.5 times slower.", "RANK=FACTOR", read=_slow)
    ] = None
    steps: Annotated[Count, option_of(Ask, "steps")] = 10
    warmup: Annotated[Count, Option("Steps that run first and do not count.", "N")] = 3
    monitor: Annotated[
        float | None,
        Option(
            "Sample devices, networks and processes of all ranks HZ times a second, from 10 to 100; 50 if HZ is left "
            "out.",
            "[HZ]",
            bare=50.0,
        ),
    ] = None
    events: Annotated[
        bool,
        Option(
            "Do not measure the works of the plan between the steps, from which `testbed compare` forecasts.",
            flag="--no-events",
            turns_off=True,
        ),
    ] = True
    threads: Annotated[Count, THREADS] = 1
    progress: Annotated[
        Progress | None, Live(), python_only("Called with the number of finished steps and of all.")
    ] = None


@dataclass(frozen=True, slots=True)
class CompareAsk(JsonRecord):
    """What ``testbed compare`` is asked."""

    run: Annotated[File, Option("The folder of a run.", "RUN")]
    _: KW_ONLY
    events: Annotated[
        File | None,
        Option(
            "Use the times measured by `traincast profile events`; estimate only what FOLDER does not have. If "
            "omitted, the events that the run measured are used.",
            "FOLDER",
        ),
    ] = None
    html: Annotated[File | None, HTML] = None


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _models(text: str) -> tuple[str, ...]:
    return (text,) if ":" in text else _listed(text)


def _strategies(text: str) -> tuple[str, ...]:
    return tuple(text.split())


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyAsk(JsonRecord):
    """What ``testbed study`` is asked: the cells of its grid that run."""

    quick: Annotated[bool, Option("Run five strategies of one model on one network.")] = False
    models: Annotated[
        Sequence[str],
        Option("Models of the study, such as llama or resnet, or one spec.", "MODEL,…", read=_models, whole=True),
    ] = ()
    strategies: Annotated[
        Sequence[str],
        Option("Strategies, separated by spaces: 'dp=2 pp=2,microbatches=4'.", "'S S …'", read=_strategies, whole=True),
    ] = ()
    rates: Annotated[
        Sequence[str],
        Option(
            "Networks: the rates of all links, such as 200Mbit,1Gbit, or loopback.",
            "RATE,…",
            read=_listed,
            whole=True,
        ),
    ] = ()
    ranks: Annotated[Count | None, Option("Number of ranks. Other cells are left out.", "N")] = None
    output: Annotated[
        File,
        Option(
            "Write to PATH: a folder for runs, events, tables and plots; a study in the same folder resumes.",
            "PATH",
            short="-o",
        ),
    ] = STUDY
    progress: Annotated[
        Progress | None, Live(), python_only("Called with the number of finished cells and of all.")
    ] = None
    say: Annotated[
        Callable[[str], None] | None, Live(), python_only("Is told about every finished or failed cell.")
    ] = None
