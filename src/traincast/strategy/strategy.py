"""How training is spread: degrees per mesh axis, and the habits that go with them."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Final, Literal, TypeAlias, get_args

from traincast.errors import StrategyError, UnknownNameError

Recompute: TypeAlias = Literal["none", "selective", "full"]
ShardRule: TypeAlias = tuple[str, str]

_MAX_DEGREE: Final = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """Degrees of parallelism and the choices that go with them; validated when made.

    ``dp·cp·tp·pp`` ranks take part. A replica's batch is cut into ``num_microbatches``; with
    ``virtual_stages`` each pipeline rank holds that many chunks of layers. ``shard_rules`` are
    (module glob, ``column`` | ``row`` | ``replicate``) pairs that override what is found by itself.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    virtual_stages: int = 1
    num_microbatches: int = 1
    schedule: str = "1f1b"
    zero: Literal[0, 1, 2, 3] = 0
    sequence_parallel: bool = False
    recompute: Recompute = "none"
    shard_rules: tuple[ShardRule, ...] = ()

    def __post_init__(self) -> None:
        for name in ("dp", "tp", "pp", "cp", "ep", "virtual_stages", "num_microbatches"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MAX_DEGREE:
                raise StrategyError(f"{name}={value}: expected a whole number from 1 to {_MAX_DEGREE}")
        if self.zero not in (0, 1, 2, 3):
            raise StrategyError(f"zero={self.zero}: expected 0, 1, 2 or 3")
        if self.recompute not in get_args(Recompute):
            raise UnknownNameError("recompute", self.recompute, get_args(Recompute))
        if self.sequence_parallel and self.tp == 1:
            raise StrategyError("sequence_parallel with tp=1: it shards along the tensor-parallel group; set tp > 1")
        if self.virtual_stages > 1 and self.pp == 1:
            raise StrategyError(f"virtual_stages={self.virtual_stages} with pp=1: there is no pipeline; set pp > 1")
        if self.zero >= 2 and self.pp > 1:
            raise StrategyError(
                f"zero={self.zero} with pp={self.pp}: sharded gradients would be reduced for every microbatch; "
                f"use zero=1 with a pipeline, or pp=1"
            )
        for rule in self.shard_rules:
            if rule[1] not in ("column", "row", "replicate"):
                raise StrategyError(f"shard rule {rule[0]}={rule[1]}: expected column, row or replicate")

    @property
    def num_ranks(self) -> int:
        """Ranks that take part."""
        return self.dp * self.tp * self.pp * self.cp

    def micro_batch(self, global_batch: int) -> int:
        """Samples per microbatch of one replica."""
        whole = self.dp * self.num_microbatches
        if global_batch % whole:
            raise StrategyError(
                f"global batch {global_batch} is not divisible by dp·num_microbatches = "
                f"{self.dp}·{self.num_microbatches} = {whole}; nearest that are: "
                f"{max(whole, global_batch // whole * whole)} and {(global_batch // whole + 1) * whole}"
            )
        return global_batch // whole

    def __str__(self) -> str:
        degrees = [f"{n}={getattr(self, n)}" for n in ("dp", "tp", "pp", "cp", "ep") if getattr(self, n) > 1]
        rest = []
        if self.virtual_stages > 1:
            rest.append(f"virtual_stages={self.virtual_stages}")
        if self.num_microbatches > 1:
            rest.append(f"num_microbatches={self.num_microbatches}")
        if self.pp > 1:
            rest.append(f"schedule={self.schedule}")
        if self.zero:
            rest.append(f"zero={self.zero}")
        if self.sequence_parallel:
            rest.append("sequence_parallel")
        if self.recompute != "none":
            rest.append(f"recompute={self.recompute}")
        return ",".join([*(degrees or ["dp=1"]), *rest])


_SHORT: Final = {
    "vp": "virtual_stages",
    "microbatches": "num_microbatches",
    "sp": "sequence_parallel",
    "micro_batch": "micro_batch",
    "mbs": "micro_batch",
}


def parse_strategy(text: str, *, global_batch: int) -> Strategy:
    """Read ``dp=8,tp=4,pp=2,sp,zero=1,micro_batch=2``.

    ``micro_batch`` fixes the samples per microbatch and derives how many microbatches there are.
    """
    known = {f.name: f for f in fields(Strategy) if f.name != "shard_rules"}
    values: dict[str, int | str | bool] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = (p.strip() for p in item.partition("="))
        name = _SHORT.get(key, key)
        if name not in known and name != "micro_batch":
            raise UnknownNameError("strategy setting", key, [*known, *_SHORT])
        if name in values:
            raise StrategyError(f"strategy {text!r} sets {name} twice")
        if name in ("schedule", "recompute"):
            values[name] = value
        elif name == "sequence_parallel":
            values[name] = _flag(key, value if equals else "true")
        else:
            values[name] = _degree(key, value)
    micro_batch = values.pop("micro_batch", None)
    if micro_batch is not None and "num_microbatches" in values:
        raise StrategyError("micro_batch and num_microbatches are two ways to say one thing: give one of them")
    strategy = Strategy(**values)  # type: ignore[arg-type]
    if micro_batch is not None:
        return with_micro_batch(strategy, int(micro_batch), global_batch)
    return strategy


def says_micro_batch(text: str) -> bool:
    """Whether a strategy's text fixes the microbatches, one way or the other."""
    keys = {item.partition("=")[0].strip() for item in text.split(",")}
    return not keys.isdisjoint({"micro_batch", "mbs", "num_microbatches", "microbatches"})


def with_micro_batch(strategy: Strategy, micro_batch: int, global_batch: int) -> Strategy:
    """The strategy whose microbatches have ``micro_batch`` samples each."""
    whole = strategy.dp * micro_batch
    if global_batch % whole:
        raise StrategyError(
            f"global batch {global_batch} is not divisible by dp·micro_batch = {strategy.dp}·{micro_batch} = {whole}; "
            f"choose a micro_batch that divides {global_batch}/{strategy.dp}"
        )
    return replace(strategy, num_microbatches=global_batch // whole)


def _degree(key: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise StrategyError(f"{key}={value!r}: expected a whole number, as in {key}=8") from None


def _flag(key: str, value: str) -> bool:
    if value.lower() in ("true", "1", "yes", "on"):
        return True
    if value.lower() in ("false", "0", "no", "off"):
        return False
    raise StrategyError(f"{key}={value!r}: expected true or false")
