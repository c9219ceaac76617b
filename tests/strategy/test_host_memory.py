from __future__ import annotations

from dataclasses import replace

import pytest

from tests.conftest import GPT, graph_of, request_of
from traincast import Request, load_cluster, predict
from traincast.cluster.hardware import joined
from traincast.cluster.topology import part_of_node
from traincast.forecast import forecast
from traincast.strategy import Memory, choose_micro_batch, lower
from traincast.strategy.memory.fits import HOST_SHARE
from traincast.strategy.memory.peak import footprints_of
from traincast.strategy.prepare import need_only, prepare

PSI = graph_of(GPT).num_parameters


def hosts(strategy: str, *, precision: str = "bf16") -> tuple[Memory, ...]:
    return lower(request_of(strategy, precision=precision)).memory


@pytest.mark.parametrize(
    ("strategy", "precision", "each"),
    [
        ("dp=8,offload=optimizer", "bf16", 4 + 8 + 4),
        ("dp=8,zero=1,offload=optimizer", "bf16", (4 + 8 + 4) / 8),
        ("dp=8,zero=3,offload=optimizer", "bf16", (4 + 8 + 4) / 8),
        ("dp=8,offload=optimizer", "fp32", 4 + 8 + 4),
        ("dp=8,offload=optimizer", "fp16", 4 + 8 + 2),
        ("dp=8", "bf16", 0),
    ],
)
def test_an_update_on_the_host_needs_master_weights_states_and_gradients_there(
    strategy: str, precision: str, each: float
) -> None:
    (memory,) = hosts(strategy, precision=precision)
    assert sum(memory.host.values()) == pytest.approx(each * PSI)


def test_what_leaves_the_device_is_on_the_host() -> None:
    (here,), (away,) = hosts("dp=8,zero=1"), hosts("dp=8,zero=1,offload=optimizer")
    assert here.optimizer == pytest.approx(away.host["master weights"] + away.host["optimizer states"])


def test_a_node_holds_what_all_its_ranks_offload() -> None:
    need = need_only(request_of("dp=8,offload=optimizer"))
    assert need.host == pytest.approx(8 * 16 * PSI)
    assert need.host_capacity == load_cluster("dgx-a100").host_memory_bytes


def test_offloaded_activations_of_all_microbatches_in_flight_are_on_the_host() -> None:
    request = request_of("pp=2,num_microbatches=8,offload=activations")
    first, last = lower(request).memory
    footprints = [footprints_of([p for chunk in prepare(request).held(stage) for p in chunk]) for stage in (0, 1)]
    saved = [(rows[:, 0] * rows[:, -1]).sum() for rows in footprints]  # all but the tensors of the loss
    assert [set(rows[:, -1]) for rows in footprints] == [{1.0}, {0.0, 1.0}]
    assert first.host["activations"] == pytest.approx(2 * saved[0])  # 1F1B: as many as stages are left
    assert last.host["activations"] == pytest.approx(saved[1])


def with_host(request: Request, nbytes: float) -> Request:
    return replace(request, cluster=replace(request.cluster, host_memory_bytes=nbytes))


def test_a_host_that_is_too_small_does_not_fit_and_the_warning_says_by_how_much() -> None:
    request = request_of("dp=8,offload=optimizer")
    need = need_only(request)
    assert forecast(request).report.fits
    short = forecast(with_host(request, need.host)).report
    assert not short.fits
    assert (short.host_memory_bytes, short.host_memory_capacity_bytes) == (need.host, need.host)
    (warning,) = [w for w in short.warnings if w.startswith("does not fit")]
    assert "of host memory per node for offloading" in warning and "per device" not in warning
    assert forecast(with_host(request, need.host / HOST_SHARE)).report.fits


def test_a_host_whose_memory_is_not_known_is_not_checked_in_silence() -> None:
    report = forecast(with_host(request_of("dp=8,offload=optimizer"), 0.0)).report
    assert report.fits and report.host_memory_capacity_bytes is None
    assert any("host memory of" in w and "is not known" in w for w in report.warnings)
    assert not any("is not known" in w for w in forecast(with_host(request_of("dp=8"), 0.0)).report.warnings)


def test_a_remedy_takes_the_host_into_account() -> None:
    request = request_of("dp=8,offload=optimizer")
    small = with_host(request, 0.5 * need_only(request).host)
    made = predict(
        request.graph, cluster=small.cluster, global_batch=small.global_batch, strategy=small.strategy, precision="bf16"
    )
    (warning,) = [w for w in made.report.warnings if w.startswith("does not fit")]
    assert "fits with zero=1" in warning or "fits with nothing offloaded" in warning


def test_the_micro_batch_is_chosen_for_hosts_as_well() -> None:
    request = replace(request_of("dp=8", global_batch=64), strategy=request_of("dp=8,offload=activations").strategy)
    chosen = choose_micro_batch(request)
    need = need_only(replace(request, strategy=chosen))
    smaller = choose_micro_batch(with_host(request, 0.6 * need.host / HOST_SHARE))
    assert smaller.num_microbatches > chosen.num_microbatches


def test_parts_of_nodes_have_their_share_and_unlike_nodes_the_least() -> None:
    a100, h100 = load_cluster("dgx-a100"), load_cluster("dgx-h100")
    assert part_of_node(a100, a100.device, 2).host_memory_bytes == a100.host_memory_bytes / 4
    lean = replace(h100, host_memory_bytes=1e12)
    assert joined([a100, lean]).host_memory_bytes == 1e12
