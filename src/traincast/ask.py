"""What is asked, as plain data: the one schema behind the command line, the Python functions and their documents.

A verb's ask is a frozen dataclass. Every field is declared once, with its type, its limits (``Meta``) and an
:class:`Option`: help, spelling on the command line, placeholder. From these declarations come the options of the
command line (:mod:`traincast.cli.derive`), the signature of the Python function (:class:`Verb`), a JSON schema
(:func:`json_schema`) and the reference. :func:`traincast.resolve.resolve` turns an ask into a request.

An ask is JSON: :meth:`Training.to_dict` and :meth:`Training.from_dict` are exact inverses. In Python, some fields also
take a live object instead of words, such as a :class:`traincast.Cluster`; an ask with such an object has no JSON.
"""

from __future__ import annotations

import ast
import inspect
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, MISSING, Field, asdict, dataclass, fields, is_dataclass
from functools import cache, update_wrapper
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Generic,
    Literal,
    NotRequired,
    ParamSpec,
    Self,
    TypeAlias,
    TypedDict,
    TypeVar,
    get_args,
    get_type_hints,
    overload,
)

import msgspec
from msgspec import Meta

from traincast.errors import RequestError, expect, nearest
from traincast.schema import convert

if TYPE_CHECKING:
    import torch

    from traincast.cluster import Cluster
    from traincast.estimate import CostModel
    from traincast.graph import OperatorGraph
    from traincast.graph.zoo.traceable import Traceable
    from traincast.strategy import Runtime, Strategy

    LiveModel: TypeAlias = OperatorGraph | torch.nn.Module | Traceable
    File: TypeAlias = str | os.PathLike[str]
else:  # in JSON there are words alone
    Cluster = CostModel = File = LiveModel = Runtime = Strategy = str

P = ParamSpec("P")
A = TypeVar("A", bound="JsonRecord")
R = TypeVar("R")

MAX_BATCH: Final = 10**9
MAX_WATTS: Final = 1e6
Batch: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_BATCH)]
Count: TypeAlias = Annotated[int, Meta(ge=1, le=10**18)]
"""A whole number that the command line also reads as ``4k`` or ``1e12``."""
Watts: TypeAlias = Annotated[float, Meta(ge=1.0, le=MAX_WATTS)]
Seed: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Workers: TypeAlias = Annotated[int, Meta(ge=1, le=1024)]
Files: TypeAlias = File | Sequence[File]
"""One file or folder, or several."""
Progress: TypeAlias = Callable[[int, int], None]
"""Is told how many parts are done, and how many there are."""
_MOST_SLOW: Final = 1000.0
_MOST_JITTER: Final = 1.0
_MOST_INTERFERENCE: Final = 100.0
"""Limits of the conditions. Larger values are mistakes: a rank that is 1,000 times slower is broken, not slow."""
_NAMED: Final = 4
"""The text of conditions names at most this many slow ranks."""
_NEVER_ZERO: Final = frozenset({"checkpoint_every_s", "evaluate_every_steps"})
"""Intervals, which divide the length of a job."""


@dataclass(frozen=True, slots=True)
class Option:
    """How a field is explained and spelled.

    ``metavar`` is the placeholder of its value. ``flag`` is the option's name if it is not that of the field; a field
    whose ``flag`` is None is for Python alone. A positional field is an argument of the command line, unless it has a
    ``flag`` or a ``short`` spelling such as -o. ``turns_off``: the option, which takes no value, sets the field to
    False, and the command line's default is True. ``read`` reads the text of one value that is neither text nor number;
    the text of a ``whole`` field holds all of its values. Texts of an option that may be given several times are
    ``joined`` to one, if the field is read from one text; help ends with the sentence ``again``. ``time``: the text is
    a time such as 30min. ``bare`` is the value of an option that is given without one.
    """

    help: str
    metavar: str = ""
    flag: str | None = ""
    turns_off: bool = False
    read: Callable[[str], Any] | None = None
    whole: bool = False
    joined: str = ""
    again: str = "May be given several times."
    time: bool = False
    bare: Any = None
    short: str = ""


HTML: Final = Option("Write a self-contained HTML page to FILE.", "FILE")
ALLOW_CODE: Final = Option("Run Python code that the table names as a model or schedule (package.module:factory).")


def python_only(meaning: str) -> Option:
    """Return the description of a field that has no option on the command line."""
    return Option(meaning, flag=None)


def paths_of(given: Files) -> list[Path]:
    """Return the paths of one file or of several."""
    return [Path(given)] if isinstance(given, str | os.PathLike) else [Path(file) for file in given]


class Live:
    """Marks a field that takes only live objects of Python, and so is no part of the JSON."""


def _slow(text: str) -> tuple[int, float]:
    rank, _, factor = text.partition("=")
    try:
        return int(rank), float(factor)
    except ValueError:
        raise RequestError(f"--slow {text!r}: expected RANK=FACTOR, such as 3=1.5") from None


def _rule(text: str) -> tuple[str, str]:
    module, equals, role = text.rpartition("=")
    if not equals or not module:
        raise RequestError(f"--shard-rule {text!r}: expected MODULE=column, MODULE=row or MODULE=replicate")
    return module, role


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """How a real cluster differs from the ideal one that a plan is estimated for; by default it does not differ.

    ``slow``: (rank, factor) pairs; ``(3, 1.5)`` means that rank 3 computes 1.5 times slower. Factors are at least 1.
    ``jitter``: sigma of a log-normal factor of mean 1 on each rank's computation; ``seed`` selects the random step.
    ``busy_network``: share of the bandwidth between nodes that other jobs use, from 0 to below 1.
    ``interference``: weight of communication on the device of a rank; while the rank computes, both take 1 + weight
    times as long.
    ``share_links``: simultaneous messages of a rank over the same link share its bandwidth. A rank has one link to its
    node and one to the network.
    """

    slow: Annotated[
        tuple[tuple[int, float], ...],
        Option("3=1.5: rank 3 computes 1.5 times slower.", "RANK=FACTOR", read=_slow),
    ] = ()
    jitter: Annotated[float, Option("Spread of the ranks' speed (sigma of its logarithm), such as 0.05.", "SIGMA")] = (
        0.0
    )
    seed: Annotated[Seed, Option("Seed of the random numbers. The jitter depends on it.", "N")] = 0
    busy_network: Annotated[
        float, Option("Share of the bandwidth between nodes that other jobs use, such as 0.3.", "SHARE")
    ] = 0.0
    interference: Annotated[
        float, python_only("While a rank computes and communicates, both take 1 + this weight times as long.")
    ] = 0.0
    share_links: Annotated[bool, Option("Let simultaneous messages of a rank share its links.")] = False

    def __post_init__(self) -> None:
        ranks = [rank for rank, _ in self.slow]
        if len(set(ranks)) < len(ranks) or any(not isinstance(rank, int) or rank < 0 for rank in ranks):
            raise RequestError(f"slow ranks {ranks}: expected different whole numbers from 0")
        for rank, factor in self.slow:
            if not 1.0 <= factor <= _MOST_SLOW:
                raise RequestError(
                    f"rank {rank} is slow by a factor of {factor:g}: expected a number from 1 to {_MOST_SLOW:g}"
                )
        if not 0.0 <= self.busy_network < 1.0:
            raise RequestError(f"busy_network is {self.busy_network}: expected a share from 0 to below 1")
        for name, value, most in (
            ("jitter", self.jitter, _MOST_JITTER),
            ("interference", self.interference, _MOST_INTERFERENCE),
        ):
            if not 0.0 <= value <= most:
                raise RequestError(f"{name} is {value:g}: expected a number from 0 to {most:g}")
        if not isinstance(self.seed, int) or self.seed < 0:
            raise RequestError(f"seed is {self.seed}: expected a whole number from 0")

    def __str__(self) -> str:
        """The conditions in words; "as estimated" if there are none."""
        parts = [f"rank {rank} computes {factor:g} times slower" for rank, factor in self.slow[:_NAMED]]
        if len(self.slow) > _NAMED:
            parts.append(f"{len(self.slow) - _NAMED} more slow ranks")
        if self.jitter:
            parts.append(f"jitter {self.jitter:.3g} (seed {self.seed})")
        if self.busy_network:
            parts.append(f"other jobs use {100.0 * self.busy_network:.3g} % of the network")
        if self.interference:
            parts.append(f"interference {self.interference:.3g}")
        if self.share_links:
            parts.append("messages share links")
        return ", ".join(parts) or "as estimated"

    @property
    def differs(self) -> bool:
        """Whether anything differs from the ideal cluster; a seed alone changes nothing."""
        return self != Conditions(seed=self.seed)

    def to_dict(self) -> dict[str, Any]:
        """The conditions as plain values, for the JSON of a report; ``text`` has them in words."""
        slow = [{"rank": rank, "factor": factor} for rank, factor in self.slow]
        return {**asdict(self), "slow": slow, "text": str(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """Settings of the parts of a job other than its steps.

    ``startup_s`` is scheduling, process start and communicator set-up on one node; it grows with the
    logarithm of the nodes. A checkpoint writes weights, master weights and optimizer states; in fine-tuning, only those
    of trained parameters.
    """

    startup_s: float = 60.0
    startup_per_doubling_s: float = 15.0
    checkpoint_every_s: float = 1800.0
    evaluate_every_steps: int = 1000
    evaluation_steps: int = 20
    bytes_per_token: float = 4.0
    bytes_per_sample: float = 120e3

    def __post_init__(self) -> None:
        for item in fields(self):
            value, least = getattr(self, item.name), 1 if item.name in _NEVER_ZERO else 0
            expect(item.name, value, (int, float), "a number")
            if not (math.isfinite(value) and value >= least):
                raise RequestError(f"{item.name}={value}: expected a number from {least}")


class JsonRecord:
    """A dataclass that is JSON: what a verb is asked."""

    __slots__ = ()

    def __post_init__(self) -> None:
        """Turn lists into tuples, so that equal asks are equal."""
        for item in fields(self):  # type: ignore[arg-type]
            value = getattr(self, item.name)
            if isinstance(value, list):
                object.__setattr__(self, item.name, tuple(value))

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults as plain values of JSON.

        Refuses a field that holds a live object of Python.
        """
        plain: dict[str, Any] = {}
        kind: Any = type(self)
        tables = tables_of(kind)
        for item in fields(self):  # type: ignore[arg-type]
            value = getattr(self, item.name)
            if value == item.default:
                continue
            table = tables.get(item.name)
            made = msgspec.to_builtins(value) if table is not None and isinstance(value, table) else value
            if not _is_plain(made):
                raise RequestError(
                    f"{item.name} is a live {type(value).__name__}, which JSON cannot hold: give it in words"
                )
            plain[item.name] = made
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        """Return the ask that :meth:`to_dict` describes; refuses unknown keys and values out of range in one line."""
        expect("an ask", plain, dict, "an object with the fields of an ask")
        kind: Any = cls
        known = {one.name for one in declared(kind) if not one.live}
        _refuse_unknown(plain, known, "the ask")
        for name, table in tables_of(kind).items():
            if isinstance(plain.get(name), dict):
                _refuse_unknown(plain[name], {one.name for one in declared(table)}, name)
        return cls(**convert(plain, table_of(kind), "ask:", remedy="every ask has it"))


def _refuse_unknown(given: Iterable[str], known: Iterable[str], where: str) -> None:
    for key in given:
        if key not in known:
            raise RequestError(f"{where} has unknown key {key!r:.60}: {nearest(str(key), known)}")


@dataclass(frozen=True, slots=True)
class Training(JsonRecord):
    """What is trained, on what, by which framework and for how long; every verb that forecasts asks this."""

    model: Annotated[
        str | LiveModel,
        Option(
            "A name of the zoo, a family with its dimensions (gpt:layers=24,hidden=2048,heads=16), a Hugging Face "
            "config.json, a saved graph, or package.module:factory.",
            "MODEL",
        ),
    ]
    _: KW_ONLY
    cluster: Annotated[
        str | Cluster,
        Option(
            "The cluster: a name, NAME:NODES or a .toml file (see `traincast clusters`); dgx-h100:1x2 is 1 node with "
            "2 of its devices, rtx-4090 is 1 device.",
            "CLUSTER",
        ),
    ]
    global_batch: Annotated[Batch, Option("Samples per step, over all devices.", "N")]
    power_limit: Annotated[
        Watts | None,
        Option("The most that each device may draw, in watts, such as 500. Default: its TDP.", "W"),
    ] = None
    seq: Annotated[Count | None, Option("Tokens per sample, for sequence models.", "N")] = None
    precision: Annotated[
        str | None,
        Option(
            "Number formats of the training step: fp32, tf32, amp, amp-bf16, fp16, bf16, pure-bf16, fp8 or nvfp4.",
            "NAME",
        ),
    ] = None
    runtime: Annotated[
        str | Runtime | None,
        Option("Training framework: a name (see `traincast runtimes`) or a .toml file.", "NAME"),
    ] = None
    layout: Annotated[
        Literal["channels_first", "channels_last"] | None,
        Option("How images lie in memory, for convolutions in 16 bits. If omitted, the framework's default.", "ORDER"),
    ] = None
    lora: Annotated[
        str | None,
        Option(
            "Train low-rank adapters and freeze everything else. Targets: attention, mlp, qkv, q, k, v, o, gate, "
            "up, down, all or patterns of module paths, joined by +. Also alpha, dropout, train, dtype and compute.",
            "rank=16,targets=…",
        ),
    ] = None
    freeze: Annotated[
        Sequence[str],
        Option("Do not train modules whose path matches PATTERN, nor give them adapters.", "PATTERN"),
    ] = ()
    quantize: Annotated[
        int | str | None,
        Option("Store frozen weights of linear layers in 4 bits (nf4, nf4-single, gptq) or 8 bits (int8).", "4|8|NAME"),
    ] = None
    optimizer: Annotated[
        bool | str,
        Option(
            "Optimizer instead of the model's own: adamw, adam, lamb, sgd, sgd-plain, adamw8bit, paged-adamw, "
            "paged-adamw8bit, lion, adafactor, muon or soap.",
            "NAME",
        ),
    ] = True
    optimizer_in_backward: Annotated[
        bool, Option("Update each weight, and free its gradient, as soon as backward has made the gradient.")
    ] = False
    loss: Annotated[
        str | None,
        Option(
            "How a language model's loss is computed instead of the framework's own way: plain, fused (one kernel), "
            "chunked (logits converted in pieces) or linear (projection and loss in pieces).",
            "NAME",
        ),
    ] = None
    tokens: Annotated[Count | None, Option("Length of the job in tokens, such as 1e12.", "N")] = None
    samples: Annotated[Count | None, Option("Length of the job in samples.", "N")] = None
    steps: Annotated[Count | None, Option("Length of the job in steps.", "N")] = None
    job: Annotated[JobSettings | None, python_only("Settings of the parts of a job other than its steps.")] = None
    bundle: Annotated[
        Sequence[str],
        Option("Estimate times with this bundle before the shipped ones.", "FOLDER"),
    ] = ()
    events: Annotated[
        str | None,
        Option(
            "Use the times measured by `traincast profile events`; estimate only what FOLDER does not have.", "FOLDER"
        ),
    ] = None
    cost_model: Annotated[
        CostModel | None,
        Live(),
        python_only("Estimates all times, instead of the shipped bundles and formulas, --bundle and --events."),
    ] = None
    use_cache: Annotated[
        bool, Option("Do not read or write the cache of traced models.", flag="--no-cache", turns_off=True)
    ] = False


@dataclass(frozen=True, slots=True)
class Ask(Training):
    """What ``predict`` is asked: a training, the strategy that spreads it, and the conditions it runs under."""

    example_inputs: Annotated[
        Any,
        Live(),
        python_only("Inputs of a live module: a tensor, or a tuple of tensors; the first dim is the batch."),
    ] = None
    _: KW_ONLY
    strategy: Annotated[
        str | Strategy | None,
        Option(
            "How to distribute the work over the devices. If omitted, one that fits in memory is chosen, if any does.",
            "dp=8,tp=4,…",
        ),
    ] = None
    shard_rules: Annotated[
        tuple[tuple[str, str], ...],
        Option(
            "Tensor parallelism of linear layers that match MODULE: column, row or replicate.",
            "MODULE=ROLE",
            flag="--shard-rule",
            read=_rule,
        ),
    ] = ()
    conditions: Annotated[
        Conditions | None, python_only("How the cluster differs from an ideal one: slow ranks, jitter, a busy network.")
    ] = None


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    return value is None or type(value) in (str, int, float, bool)


@dataclass(frozen=True, slots=True)
class Declared:
    """One field of an ask: its name, type in JSON, default (``MISSING`` if required) and option."""

    name: str
    kind: Any
    default: Any
    option: Option
    live: bool
    positional: bool


@cache
def declared(ask: Any) -> tuple[Declared, ...]:
    """Return the fields of an ask, or of one of its tables, in the order of their declaration."""
    hints = get_type_hints(ask, include_extras=True)
    return tuple(_declared(item, hints[item.name]) for item in fields(ask))


def _declared(item: Field[Any], hint: Any) -> Declared:
    notes = getattr(hint, "__metadata__", ())
    return Declared(
        name=item.name,
        kind=_with_limits(get_args(hint)[0], notes) if notes else hint,
        default=item.default,
        option=next((note for note in notes if isinstance(note, Option)), python_only("")),
        live=any(isinstance(note, Live) for note in notes),
        positional=not item.kw_only,
    )


def option_of(ask: Any, name: str) -> Option:
    """Return the option of one field of an ask, for another ask that has the same field."""
    home = next(kind for kind in ask.__mro__ if name in inspect.get_annotations(kind))
    alone = {"__module__": home.__module__, "__annotations__": {name: inspect.get_annotations(home)[name]}}
    hint = get_type_hints(type(name, (), alone), include_extras=True)[name]  # all fields would take a millisecond
    return next(note for note in hint.__metadata__ if isinstance(note, Option))


def _with_limits(kind: Any, notes: Iterable[object]) -> Any:
    limits = next((note for note in notes if isinstance(note, Meta)), None)
    return Annotated[kind, limits] if limits else kind


@cache
def tables_of(ask: Any) -> Mapping[str, Any]:
    """Return the fields of an ask that are tables of their own in JSON, with the dataclass of each."""
    found = {}
    for one in declared(ask):
        tables = [kind for kind in (one.kind, *get_args(one.kind)) if is_dataclass(kind)]
        if tables and not one.live:
            found[one.name] = tables[0]
    return found


@cache
def table_of(ask: Any) -> Any:
    """Return the type of the JSON object of an ask: its fields without those that hold live objects."""
    keys = {}
    for one in declared(ask):
        if not one.live:
            keys[one.name] = one.kind if one.default is MISSING else NotRequired[one.kind]
    return TypedDict(f"{ask.__name__}Table", keys)  # type: ignore[operator]


def json_schema(ask: type) -> dict[str, Any]:
    """Return the JSON schema of an ask, with the help of each field as its description."""
    schema = msgspec.json.schema(table_of(ask))
    found: dict[str, Any] = schema["$defs"][f"{ask.__name__}Table"]
    for one in declared(ask):
        if one.name in found["properties"] and one.option.help:
            found["properties"][one.name]["description"] = one.option.help
    found["additionalProperties"] = False
    return schema


class Verb(Generic[P, A, R]):
    """A function that takes an ask, or the fields of one as arguments: ``predict(ask)`` or ``predict(model, …)``."""

    __name__: str

    def __init__(self, ask: Callable[P, A], answer: Callable[[A], R]) -> None:
        self._ask, self._answer = ask, answer
        update_wrapper(self, answer)
        self.__doc__ = "\n".join((inspect.cleandoc(answer.__doc__ or ""), "", *_described(ask)))

    @overload
    def __call__(self, ask: A, /) -> R: ...
    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def __call__(self, *args: Any, **kwargs: Any) -> R:
        """Answer an ask, or one that is made of these arguments."""
        if len(args) == 1 and isinstance(args[0], JsonRecord):
            kind: Any = self._ask
            expect("ask", args[0], kind, f"a {kind.__name__}")
            return self._answer(args[0], **kwargs)  # type: ignore[arg-type]
        try:
            made = self._ask(*args, **kwargs)
        except TypeError as error:
            raise TypeError(str(error).replace(f"{self._ask.__name__}.__init__()", f"{self.__name__}()")) from None
        return self._answer(made)

    @property
    def __signature__(self) -> inspect.Signature:
        """The signature of the ask, and the result of the function."""
        made = inspect.signature(self._ask)
        plain = [one.replace(annotation=_plain_type(one.annotation)) for one in made.parameters.values()]
        return inspect.Signature(plain, return_annotation=inspect.signature(self._answer).return_annotation)


def verb(ask: Callable[P, A]) -> Callable[[Callable[[A], R]], Verb[P, A, R]]:
    """Return the decorator of a function that answers ``ask``, a subclass of :class:`JsonRecord`."""

    def decorate(answer: Callable[[A], R]) -> Verb[P, A, R]:
        return Verb(ask, answer)

    return decorate


def _plain_type(annotation: str) -> str:
    """Return the type in the text of an annotation, without its ``Annotated[…]``."""
    read = ast.parse(annotation, mode="eval").body
    if isinstance(read, ast.Subscript) and ast.unparse(read.value) == "Annotated" and isinstance(read.slice, ast.Tuple):
        annotation = ast.unparse(read.slice.elts[0])
    return re.sub(rf"\b({'|'.join(_MEANT)})\b", lambda found: _MEANT[found[0]], annotation)


_MEANT: Final = {
    "Batch": "int",
    "Count": "int",
    "Seed": "int",
    "Watts": "float",
    "Workers": "int",
    "File": "str | os.PathLike[str]",
    "Files": "str | os.PathLike[str] | Sequence[str | os.PathLike[str]]",
    "LiveJobs": "Path | JobLog | Sequence[Job]",
    "LiveModel": "OperatorGraph | torch.nn.Module | Traceable",
    "LiveNodes": "Path | SharedCluster",
    "Progress": "Callable[[int, int], None]",
}
"""Names that stand for types in this module, and what a reader of a signature knows them as."""


def _described(ask: Any) -> Iterator[str]:
    """Yield the arguments of an ask with their meaning, for a docstring."""
    yield "Arguments:"
    for one in declared(ask):
        yield f"    {one.name}: {one.option.help}"
