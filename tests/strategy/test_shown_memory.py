from __future__ import annotations

from dataclasses import replace

from traincast import load_runtime
from traincast.strategy import Memory
from traincast.strategy.memory.peak import reported


def test_a_frameworks_log_says_what_its_allocator_counts_on_the_rank_it_writes_from() -> None:
    first = Memory(weights=1, gradients=2, optimizer=3, activations=4, other=5, parts={"fragmentation": 0.5})
    second = replace(first, activations=40)
    megatron, nanotron = load_runtime("megatron"), load_runtime("nanotron")
    assert reported([first, second], megatron) == second.tensors == 46
    assert reported([first, second], nanotron) == first.tensors + 0.5


def test_a_device_shows_all_its_memory_but_never_more_than_it_has() -> None:
    memory = Memory(weights=1, gradients=2, optimizer=3, activations=4, other=5, parts={"fragmentation": 0.5})
    runtime = load_runtime("megatron-deepspeed")
    assert reported([memory], runtime) == memory.total == 15
    unused = replace(memory, cached=6)
    assert (unused.total, reported([unused], runtime), reported([unused], runtime, capacity=20)) == (15, 21, 20)
    assert reported([memory], runtime, capacity=12) == 12
    assert reported([memory], load_runtime("megatron"), capacity=12) == memory.tensors == 10
