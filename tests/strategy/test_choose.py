"""A strategy when none is given: one that fits if any does, simple or, where steps are timed, fast."""

from __future__ import annotations

from dataclasses import replace

import pytest
from benchmarks.choices import fits_somewhere

from tests.conftest import CNN, GPT, devices, graph_of, request_of
from tests.searching.problems import MOE
from traincast import Request, Strategy, StrategyError, load_cluster, load_runtime
from traincast.ask import Training
from traincast.resolve import resolve
from traincast.strategy import choose_micro_batch, choose_strategy, lower
from traincast.strategy.choose import choose, remedy_of, usual_runtime
from traincast.strategy.prepare import need_only


def with_memory(request: Request, nbytes: float) -> Request:
    device = replace(request.cluster.device, memory_bytes=nbytes)
    return replace(request, cluster=replace(request.cluster, device=device))


def eight(global_batch: int = 64) -> Request:
    return replace(request_of("dp=8", global_batch=global_batch), strategy=Strategy())


def test_where_memory_abounds_plain_data_parallelism_is_chosen() -> None:
    chosen = choose_strategy(eight())
    assert (chosen.dp, chosen.tp, chosen.pp, chosen.zero, chosen.recompute) == (8, 1, 1, 0, "none")


@pytest.mark.parametrize("share", [1.0, 0.97, 0.95, 0.93])
def test_what_is_chosen_fits(share: float) -> None:
    request = eight()
    need = need_only(replace(request, strategy=choose_strategy(request))).sure
    tight = with_memory(request, need * share)
    chosen = choose_strategy(tight)
    assert chosen.num_ranks == 8
    fits = need_only(replace(tight, strategy=chosen)).fits
    assert fits or share < 0.95
    lower(replace(tight, strategy=chosen))


def test_where_nothing_fits_the_least_hungry_is_chosen() -> None:
    request = with_memory(eight(), 1.0)
    chosen = choose_strategy(request)
    plain = replace(request, strategy=Strategy(dp=8))
    assert need_only(replace(request, strategy=chosen)).load < need_only(plain).load


@pytest.mark.long(but=1)
@pytest.mark.parametrize(("model", "runtime"), [(GPT, "hf-trainer"), (GPT, "tensorflow-xla"), (MOE, "megatron")])
def test_what_is_chosen_fits_wherever_a_search_or_a_remedy_finds_room(model: str, runtime: str) -> None:
    """From hardly any memory to enough for plain replicas; the whole space of a search is the judge."""
    request = replace(eight(global_batch=2), graph=graph_of(model), runtime=load_runtime(runtime), cluster=devices(2))
    plain = need_only(replace(request, strategy=Strategy(dp=2)))
    fixed = request.runtime.memory.context_bytes + request.runtime.memory.workspace_bytes
    found = []
    for share in (0.6, 0.8, 0.9, 1.0):
        tight = with_memory(request, fixed + share * (plain.sure - fixed))
        chosen = choose(tight)
        assert chosen.need.fits == need_only(replace(tight, strategy=chosen.strategy)).fits
        assert chosen.need.fits or not fits_somewhere(tight)
        assert chosen.need.fits or remedy_of(replace(tight, strategy=chosen.strategy), chosen.need).change is None
        found.append(chosen.need.fits)
    assert found == sorted(found)
    assert found[-1]


def test_what_only_sharded_parameters_make_fit_is_chosen() -> None:
    """Thirteen billion parameters on four devices of 80 GB: replicas and sharded states do not fit, whole shards do."""
    chosen = choose(
        resolve(Training("llama2-13b", cluster="dgx-a100:1x4", global_batch=4, seq=2048, runtime="hf-trainer")).request
    )
    assert chosen.need.fits
    assert (chosen.strategy.dp, chosen.strategy.zero) == (4, 3)


def test_of_the_first_that_fits_and_promising_ones_the_fastest_is_chosen() -> None:
    request, seen = eight(), list[Strategy]()

    def seconds(strategy: Strategy) -> float:
        seen.append(strategy)
        return 1.0 / strategy.tp

    chosen = choose(request, seconds=seconds)
    assert seen[0] == choose(request).strategy == choose_strategy(request)
    assert chosen.timed == len(seen) > 3
    assert chosen.strategy.tp == max(strategy.tp for strategy in seen) > 1
    assert all(need_only(replace(request, strategy=strategy)).fits for strategy in seen)
    assert choose(request, seconds=lambda strategy: 1.0 - 0.001 * strategy.tp).strategy == seen[0]


def test_the_largest_micro_batch_that_fits_is_taken() -> None:
    request = replace(request_of("dp=8", global_batch=64), strategy=Strategy(dp=8))
    assert choose_micro_batch(request).num_microbatches == 1
    sizes = {n: need_only(replace(request, strategy=Strategy(dp=8, num_microbatches=n))).sure for n in (1, 2, 4, 8)}
    assert sizes[1] > sizes[2] > sizes[4] > sizes[8]
    assert choose_micro_batch(with_memory(request, (sizes[2] + sizes[4]) / 2)).num_microbatches == 4
    assert choose_micro_batch(with_memory(request, 1.0)).num_microbatches == 8


def test_a_pipeline_is_kept_full() -> None:
    request = replace(request_of("pp=4,num_microbatches=4", global_batch=64), strategy=Strategy(pp=4))
    assert choose_micro_batch(request).num_microbatches >= 4 * 4


def test_a_batch_smaller_than_the_devices_is_shared_out_otherwise_or_refused() -> None:
    chosen = choose_strategy(eight(global_batch=4))
    assert chosen.dp <= 4
    assert chosen.num_ranks == 8
    one = replace(eight(global_batch=1), graph=graph_of("resnet-cifar:layers=20"))
    assert choose_strategy(one).pp == 8
    with pytest.raises(StrategyError, match="no strategy found for global batch 1 on 64 devices: "):
        choose_strategy(replace(one, cluster=devices(64)))


def test_a_batch_that_no_habit_shares_out_gets_another_mesh() -> None:
    """Seven samples and twelve heads on eight devices: neither eight replicas nor eight tensor ranks, but 4 × 2."""
    request = replace(eight(global_batch=7), graph=graph_of("gpt:layers=4,hidden=384,heads=12"))
    chosen = choose_strategy(request)
    assert (chosen.dp, chosen.tp, chosen.pp, chosen.num_microbatches) == (1, 4, 2, 7)
    lower(replace(request, strategy=chosen))


@pytest.mark.parametrize("batch", [1, 2, 3, 5, 6, 7, 11])
def test_any_batch_is_shared_out_over_eight_devices(batch: int) -> None:
    request = eight(global_batch=batch)
    chosen = choose_strategy(request)
    assert chosen.num_ranks == 8
    assert chosen.micro_batch(batch) * chosen.dp * chosen.num_microbatches == batch
    lower(replace(request, strategy=chosen))


@pytest.mark.parametrize(("count", "ep"), [(8, 8), (1, 1), (2, 2), (3, 1)])
def test_experts_are_shared_out_where_they_can_be(count: int, ep: int) -> None:
    request = replace(eight(global_batch=24), graph=graph_of(MOE), cluster=devices(count))
    chosen = choose_strategy(request)
    assert (chosen.dp, chosen.tp, chosen.pp, chosen.ep) == (count, 1, 1, ep)


def test_experts_of_a_tensor_group_are_shared_out_with_its_sequence() -> None:
    """A batch of one: all devices are one tensor group, whose ranks route different tokens."""
    request = replace(eight(global_batch=1), graph=graph_of(MOE), cluster=devices(4))
    chosen = choose_strategy(request)
    assert (chosen.tp, chosen.ep, chosen.sequence_parallel) == (4, 4, True)
    lower(replace(request, strategy=chosen))


def test_runtimes_habits_are_kept() -> None:
    request = replace(eight(), runtime=eight().runtime.patched(defaults={"recompute": "full"}))
    assert choose_strategy(request).recompute == "full"
    assert request.graph == graph_of(GPT)


@pytest.mark.parametrize(("model", "cluster", "runtime"), [
    (GPT, "dgx-a100", "megatron"),
    (MOE, "dgx-a100", "megatron-bridge"),
    (MOE, "a100-sxm4-80gb-megatron-deepspeed-vtrain-multi", "megatron-deepspeed"),
    (CNN, "dgx-a100", "pytorch"),
    (GPT, "tpu-v5p-host", "maxtext"),
    (CNN, "tpu-v5p-host", "maxtext"),
    (GPT, "trn1.32xlarge", "neuronx"),
    (GPT, "gaudi3", "optimum-habana"),
    (GPT, "a100-sxm4-80gb-megatron-deepspeed-vtrain-multi", "megatron-deepspeed"),
])  # fmt: skip
def test_the_usual_runtime_is_that_of_the_maker_or_of_the_calibrated_runs(
    model: str, cluster: str, runtime: str
) -> None:
    assert usual_runtime(graph_of(model), load_cluster(cluster)) == runtime
