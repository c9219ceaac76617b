"""How training is spread: degrees of parallelism, and the choices that go with them."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal, TypeAlias, get_args

from traincast.errors import StrategyError, UnknownNameError, expect
from traincast.strategy.program.recompute import load_recomputation

ContextExchange: TypeAlias = Literal["all_gather", "ring"]
Offload: TypeAlias = Literal["optimizer", "activations"]
TablePlacement: TypeAlias = Literal["replicated", "sharded"]
ShardRule: TypeAlias = tuple[str, str]

_MAX_DEGREE: Final = 10_000_000
_DEGREES: Final = ("dp", "tp", "pp", "cp", "ep", "virtual_stages", "num_microbatches", "recompute_every")
_COUNTS: Final = ("etp", "shard", "servers", "server_nodes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """Degrees of parallelism and the choices that go with them; raises :class:`StrategyError` if they contradict.

    **Ranks.** ``dp·cp·tp·pp`` ranks take part. The batch of a replica is cut into ``num_microbatches``. Replicas have
    equal batches, or batches in the ratio of ``shares``: with ``shares=(2, 1, 1)``, the first of three has one half.

    **Pipeline.** Each stage holds ``virtual_stages`` chunks of layers. ``layers`` is the number of layers of each
    chunk; if it is empty, the layers are divided automatically.

    **Experts.** ``ep`` ranks share the experts of a mixture, and ``etp`` ranks share each expert (0: one rank if
    ``ep`` > 1, else ``tp`` ranks). The busiest rank gets ``imbalance`` times its even share of tokens, but no more than
    ``capacity`` times (0: no limit).

    **Replicas.** ZeRO stage ``zero`` shards states over ``shard`` replicas (0: over all of them). With ``zero=3``,
    ``reshard`` drops gathered parameters between forward and backward, and ``prefetch`` blocks are gathered ahead
    (−1: the runtime's default). ``compression`` is the fraction of the gradients' bytes that is sent.

    **Parameter servers.** ``servers`` servers hold the weights and replace the all-reduce. They run on the nodes of the
    workers, or on the last ``server_nodes`` nodes of the cluster, which then have no workers. ``placement`` lists the
    nodes that have servers instead: node 0 is that of rank 0. Servers are divided evenly among the listed nodes.

    **Embedding tables** with sparse gradients are ``replicated``, or ``sharded``: divided among replicas.

    ``shard_rules`` are (module glob, ``column`` | ``row`` | ``replicate``) pairs. They override the sharding of linear
    layers that is found automatically.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 0
    virtual_stages: int = 1
    layers: tuple[int, ...] = ()
    num_microbatches: int = 1
    schedule: str = "1f1b"
    zero: Literal[0, 1, 2, 3] = 0
    shard: int = 0
    reshard: bool = True
    prefetch: int = -1
    sequence_parallel: bool = False
    context: ContextExchange = "all_gather"
    recompute: str = "none"
    recompute_every: int = 1
    offload: tuple[Offload, ...] = ()
    compression: float = 1.0
    imbalance: float = 1.0
    capacity: float = 0.0
    sync_each: bool = False
    servers: int = 0
    server_nodes: int = 0
    placement: tuple[int, ...] = ()
    asynchronous: bool = False
    shares: tuple[int, ...] = ()
    tables: TablePlacement = "replicated"
    shard_rules: tuple[ShardRule, ...] = ()

    def __post_init__(self) -> None:
        for name in _DEGREES:
            _check_count(name, getattr(self, name), 1)
        for name in _COUNTS:
            _check_count(name, getattr(self, name), 0)
        if self.zero not in (0, 1, 2, 3):
            raise StrategyError(f"zero={self.zero}: expected 0, 1, 2 or 3")
        load_recomputation(self.recompute)
        if self.context not in get_args(ContextExchange):
            raise UnknownNameError("context", self.context, get_args(ContextExchange))
        for name in self.offload:
            if name not in get_args(Offload):
                raise UnknownNameError("offload", name, get_args(Offload))
        _check_number("compression", self.compression, 1e-6, 1.0)
        _check_number("imbalance", self.imbalance, 1.0, 1e4)
        _check_number("capacity", self.capacity, 0.0, 1e4)
        if not isinstance(self.prefetch, int) or not -1 <= self.prefetch <= 1000:
            raise StrategyError(f"prefetch={self.prefetch}: expected a number of blocks from 0 to 1000")
        self._check_pipeline()
        self._check_replicas()
        self._check_servers()
        self._check_experts()
        self._check_shares()
        self._check_tables()
        for rule in self.shard_rules:
            if rule[1] not in ("column", "row", "replicate"):
                raise StrategyError(f"shard rule {rule[0]}={rule[1]}: expected column, row or replicate")

    def _check_pipeline(self) -> None:
        if self.sequence_parallel and self.tp == 1:
            raise StrategyError("sequence_parallel with tp=1: it shards along the tensor-parallel group; set tp > 1")
        if self.virtual_stages > 1 and self.pp == 1:
            raise StrategyError(f"virtual_stages={self.virtual_stages} with pp=1: there is no pipeline; set pp > 1")
        if self.layers and any(not isinstance(n, int) or n < 0 for n in self.layers):
            raise StrategyError(
                f"layers={'/'.join(map(str, self.layers))}: expected whole numbers, as in layers=7/8/8/9"
            )
        if self.recompute_every > 1 and not load_recomputation(self.recompute).whole_block:
            raise StrategyError(
                f"recompute_every={self.recompute_every} with recompute={self.recompute}: it selects the layers that "
                "are recomputed in full; set recompute=full"
            )

    def _check_replicas(self) -> None:
        replicas = self.dp * self.cp
        if self.shard and (not self.zero or replicas % self.shard):
            raise StrategyError(
                f"shard={self.shard} with zero={self.zero} and dp·cp = {replicas}: it is the number of replicas that "
                "states are sharded over; set zero to 1, 2 or 3 and shard to a divisor of dp·cp"
            )
        if not self.reshard and self.zero != 3:
            raise StrategyError(f"reshard=false with zero={self.zero}: only zero=3 gathers parameters; set zero=3")

    def _check_servers(self) -> None:
        if self.asynchronous and not self.servers:
            raise StrategyError("asynchronous without parameter servers: set servers=1 or more")
        if self.server_nodes > self.servers:
            raise StrategyError(
                f"server_nodes={self.server_nodes} with servers={self.servers}: each of these nodes needs a server; "
                f"set servers={self.server_nodes} or more, or fewer server_nodes"
            )
        if self.servers and (self.tp, self.pp, self.cp, self.ep, self.zero) != (1, 1, 1, 1, 0):
            raise StrategyError(
                f"servers={self.servers} with {self}: parameter servers support only data parallelism; leave out tp, "
                "pp, cp, ep and zero"
            )
        if self.placement and not 1 <= len(self.placement) <= self.servers:
            raise StrategyError(
                f"{_written('placement', self.placement)} with servers={self.servers}: every listed node needs a "
                f"server; list from 1 to {self.servers} nodes"
                if self.servers
                else f"{_written('placement', self.placement)} without parameter servers: set servers"
            )
        wrong = any(not isinstance(node, int) or node < 0 for node in self.placement)
        if wrong or len(set(self.placement)) < len(self.placement):
            raise StrategyError(
                f"{_written('placement', self.placement)}: expected different nodes from 0, as in placement=0/3"
            )

    def _check_shares(self) -> None:
        if not self.shares:
            return
        text = _written("shares", self.shares)
        if len(self.shares) != self.dp or any(
            not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= _MAX_DEGREE for n in self.shares
        ):
            raise StrategyError(f"{text} with dp={self.dp}: expected {self.dp} whole numbers from 1, one per replica")
        if self.ep > 1:
            raise StrategyError(f"{text} with ep={self.ep}: experts are shared by replicas; leave out one of them")

    def _check_tables(self) -> None:
        if self.tables not in get_args(TablePlacement):
            raise UnknownNameError("tables", self.tables, get_args(TablePlacement))
        others = self.tp, self.pp, self.cp, self.ep, self.servers, len(self.shares)
        if self.tables == "sharded" and (others != (1, 1, 1, 1, 0, 0) or self.zero == 3):
            raise StrategyError(
                f"tables=sharded with {self}: tables are divided among equal data-parallel replicas only; leave out "
                "tp, pp, cp, ep, zero=3, servers and shares"
            )

    def _check_experts(self) -> None:
        group = self.ep * self.expert_tp
        if (self.ep > 1 or self.etp) and (self.dp * self.cp * self.tp) % group:
            raise StrategyError(
                f"ep·etp = {self.ep}·{self.expert_tp} = {group} does not divide the dp·cp·tp = "
                f"{self.dp * self.cp * self.tp} ranks of a stage; choose degrees that do"
            )
        if (self.ep > 1 or self.expert_tp != self.tp) and self.tp > 1 and not self.sequence_parallel:
            raise StrategyError(
                f"ep={self.ep} with tp={self.tp}: every rank of a tensor group would route the same tokens; set "
                "sequence_parallel, or tp=1"
            )

    @property
    def num_ranks(self) -> int:
        """Ranks that take part, without parameter servers."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def expert_tp(self) -> int:
        """Ranks that share one expert: ``etp`` if set, else 1 with expert parallelism, else ``tp``."""
        return self.etp or (1 if self.ep > 1 else self.tp)

    @property
    def expert_replicas(self) -> int:
        """Ranks that hold the same part of the same experts."""
        return self.dp * self.cp * self.tp // (self.ep * self.expert_tp)

    @property
    def load(self) -> float:
        """Tokens that the busiest rank's experts get, divided by the mean; at most ``ep`` (one rank gets all)."""
        return min(self.imbalance, self.capacity or self.imbalance, float(self.ep))

    def micro_batch(self, global_batch: int) -> int:
        """Samples per microbatch of one replica, or of that with the largest share.

        Raises :class:`StrategyError` if ``global_batch`` does not divide.
        """
        if self.shares:
            return max(self.samples(global_batch)) // self.num_microbatches
        whole = self.dp * self.num_microbatches
        if global_batch % whole:
            raise StrategyError(
                f"global batch {global_batch} is not divisible by dp·num_microbatches = "
                f"{self.dp}·{self.num_microbatches} = {whole}; the nearest batches that are divisible: "
                f"{max(whole, global_batch // whole * whole)} and {(global_batch // whole + 1) * whole}"
            )
        return global_batch // whole

    def samples(self, global_batch: int) -> tuple[int, ...]:
        """Samples of each replica; raises :class:`StrategyError` if ``global_batch`` does not divide."""
        if not self.shares:
            return (self.micro_batch(global_batch) * self.num_microbatches,) * self.dp
        divisor = math.gcd(*self.shares)
        whole = sum(self.shares) // divisor * self.num_microbatches
        if global_batch % whole:
            raise StrategyError(
                f"global batch {global_batch} cannot be divided as {_written('shares', self.shares)} into whole "
                f"samples with num_microbatches={self.num_microbatches}; the nearest batches that can: "
                f"{max(whole, global_batch // whole * whole)} and {(global_batch // whole + 1) * whole}"
            )
        return tuple(share * global_batch // sum(self.shares) for share in self.shares)

    def __str__(self) -> str:
        shown = [f"{n}={getattr(self, n)}" for n in ("dp", "tp", "pp", "cp", "ep") if getattr(self, n) > 1]
        parts = shown or ["dp=1"]
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in ("dp", "tp", "pp", "cp", "ep", "shard_rules"):
                continue
            if field.name == "schedule":
                parts += [f"schedule={value}"] if self.pp > 1 else []
            elif value != field.default:
                parts.append(_written(field.name, value))
        return ",".join(parts)

    @property
    def complete_text(self) -> str:
        """The strategy as text, always with the number of microbatches; without it, a forecast would choose one."""
        text = str(self)
        return text if says_micro_batch(text) else f"{text},num_microbatches={self.num_microbatches}"


def _check_count(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _MAX_DEGREE:
        raise StrategyError(f"{name}={value}: expected a whole number from {least} to {_MAX_DEGREE}")


def _check_number(name: str, value: Any, least: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise StrategyError(f"{name}={value}: expected a number from {least:g} to {most:g}")
    if not least <= value <= most:
        raise StrategyError(f"{name}={value}: expected a number from {least:g} to {most:g}")


def _written(name: str, value: object) -> str:
    if value is True:
        return name
    if isinstance(value, bool):
        return f"{name}=false"
    if isinstance(value, tuple):
        return f"{name}={_BETWEEN.get(name, '+').join(map(str, value))}"
    return f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"


_BETWEEN: Final = {"layers": "/", "placement": "/", "shares": ":"}
"""What separates the whole numbers of settings that are lists of them."""
_SHORT: Final = {
    "vp": "virtual_stages",
    "microbatches": "num_microbatches",
    "sp": "sequence_parallel",
    "async": "asynchronous",
    "micro_batch": "micro_batch",
    "mbs": "micro_batch",
}


def parse_strategy(text: str, *, global_batch: int) -> Strategy:
    """Returns the strategy that a text such as ``dp=8,tp=4,pp=2,sp,zero=1,micro_batch=2`` describes.

    ``micro_batch`` sets the samples per microbatch; the number of microbatches follows from ``global_batch``. Raises
    :class:`StrategyError` for wrong values and :class:`UnknownNameError` for unknown settings.
    """
    expect("strategy", text, str, "a text such as dp=8,tp=4, or a Strategy")
    known = {f.name: f.default for f in fields(Strategy) if f.name != "shard_rules"}
    values: dict[str, Any] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = (p.strip() for p in item.partition("="))
        name = _SHORT.get(key, key)
        if name not in known and name != "micro_batch":
            raise UnknownNameError("strategy setting", key, [*known, *_SHORT])
        if name in values:
            raise StrategyError(f"strategy {text!r} sets {name} twice")
        values[name] = _parsed(name, key, value if equals else "", known.get(name, 1))
    micro_batch = values.pop("micro_batch", None)
    if micro_batch is not None and "num_microbatches" in values:
        raise StrategyError("micro_batch and num_microbatches set the same thing: give only one of them")
    strategy = Strategy(**values)
    if micro_batch is not None:
        return with_micro_batch(strategy, int(micro_batch), global_batch)
    return strategy


def _parsed(name: str, key: str, value: str, default: object) -> Any:
    """``value`` converted to the type of ``default``; ``key`` is the user's spelling of ``name``, for errors."""
    match default:
        case bool():
            return _flag(key, value or "true")
        case int():
            return _degree(key, value)
        case float():
            try:
                return float(value)
            except ValueError:
                raise StrategyError(f"{key}={value!r}: expected a number, as in {key}=0.5") from None
        case tuple() if name in _BETWEEN:
            return tuple(_degree(key, part) for part in value.split(_BETWEEN[name]))
        case tuple():
            return tuple(dict.fromkeys(value.split("+")))
        case _:
            return value


def says_micro_batch(text: str) -> bool:
    """Whether a strategy's text sets the micro batch or the number of microbatches."""
    return not settings_in(text).isdisjoint({"micro_batch", "num_microbatches"})


def settings_in(text: str) -> set[str]:
    """The settings that a strategy's text names, by their long names."""
    keys = (item.partition("=")[0].strip() for item in text.split(","))
    return {_SHORT.get(key, key) for key in keys if key}


def with_micro_batch(strategy: Strategy, micro_batch: int, global_batch: int) -> Strategy:
    """``strategy`` with as many microbatches as give each ``micro_batch`` samples, or those of the largest share.

    Raises :class:`StrategyError` if ``dp·micro_batch`` does not divide ``global_batch``.
    """
    _check_count("micro_batch", micro_batch, 1)
    if strategy.shares:
        samples = replace(strategy, num_microbatches=1).samples(global_batch)
        if max(samples) % micro_batch:
            raise StrategyError(
                f"micro_batch={micro_batch} does not divide the {max(samples)} samples of the replica with the largest "
                "share; choose a divisor"
            )
        found = replace(strategy, num_microbatches=max(samples) // micro_batch)
        found.samples(global_batch)  # refuses microbatches that divide another replica's samples unevenly
        return found
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
