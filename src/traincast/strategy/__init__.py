"""How training is spread: strategies, runtimes, plans, and lowering to them."""

from traincast.strategy.choose import choose_micro_batch, choose_strategy
from traincast.strategy.lower import Lowered, lower
from traincast.strategy.memory.peak import Memory
from traincast.strategy.mesh import Group, Mesh
from traincast.strategy.plan import NUM_STREAMS, Category, Plan, Segment, Stream
from traincast.strategy.prepare import Request
from traincast.strategy.program.precision import PRECISIONS, Precision, load_precision
from traincast.strategy.runtime import Runtime, find_runtime, load_runtime, runtime_names
from traincast.strategy.schedules import SCHEDULES, Slot
from traincast.strategy.strategy import Strategy, parse_strategy, with_micro_batch

__all__ = [
    "NUM_STREAMS",
    "PRECISIONS",
    "SCHEDULES",
    "Category",
    "Group",
    "Lowered",
    "Memory",
    "Mesh",
    "Plan",
    "Precision",
    "Request",
    "Runtime",
    "Segment",
    "Slot",
    "Strategy",
    "Stream",
    "choose_micro_batch",
    "choose_strategy",
    "find_runtime",
    "load_precision",
    "load_runtime",
    "lower",
    "parse_strategy",
    "runtime_names",
    "with_micro_batch",
]
