"""Jobs that share the uplink of a switch: who meets whom, exact times, and forecast slowdowns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.scheduling.described import MLP, log, on
from tests.scheduling.queues import queue
from traincast import Job, RequestError, SharedCluster, schedule
from traincast.scheduling import PlacedGpus, simulate
from traincast.scheduling.schedule import load_shared_cluster
from traincast.scheduling.sharing.contention import ForecastContention, Guest, MeetingPlace
from traincast.scheduling.sharing.step_times import StepTimes, What, Where
from traincast.scheduling.space.nodes import load_nodes

GBIT = 1e9 / 8


class CrowdedSwitch:
    """Jobs take as many times as long as there are on an uplink; on nodes nobody is slowed."""

    def guest(self, job: Job, placed: PlacedGpus) -> Guest | None:
        """Return a guest named by the job."""
        return Guest(What(job.job_id, 1), Where("", 0, 0, len(placed.nodes), placed.num_racks))

    def slowdowns(self, guests: tuple[Guest, ...], *, at: MeetingPlace) -> tuple[float, ...]:
        """Return the number of guests below the switch, for each."""
        return (float(len(guests)) if at == "switch" else 1.0,) * len(guests)


def ends(
    *jobs: tuple[float, float, float],
    nodes: int,
    per_rack: int,
    uplink: float = 1.0,
    placement: str = "consolidated",
) -> dict[str, float]:
    """When each job ends on nodes of one GPU, in racks of ``per_rack``."""
    cluster, _ = load_shared_cluster(f"{nodes}x1", nodes_per_rack=per_rack, uplink=uplink)
    outcome = simulate(queue(*jobs), cluster, placement=placement, contention=CrowdedSwitch())
    return {fate.job_id: fate.end_s for fate in outcome.fates}


def test_jobs_that_span_the_same_racks_share_their_uplinks() -> None:
    """Racks of two: a takes nodes 0 to 2, b nodes 3 to 5; both span the rack of nodes 2 and 3."""
    assert ends((0, 3, 100), (50, 3, 50), nodes=6, per_rack=2) == pytest.approx({"a": 150.0, "b": 150.0})


def test_a_job_below_one_switch_uses_no_uplink() -> None:
    assert ends((0, 3, 100), (0, 1, 100), nodes=4, per_rack=2) == pytest.approx({"a": 100.0, "b": 100.0})
    assert ends((0, 2, 100), (0, 2, 100), nodes=4, per_rack=2) == pytest.approx({"a": 100.0, "b": 100.0})


def test_complementary_jobs_stay_below_one_switch_if_others_use_its_uplink() -> None:
    """Job a spans the racks of nodes 0 to 3; b would span the second of these and a third, but fits into the third."""
    jobs = ((0.0, 3, 100.0), (0.0, 2, 100.0))
    assert ends(*jobs, nodes=8, per_rack=2) == pytest.approx({"a": 200.0, "b": 200.0})
    apart = ends(*jobs, nodes=8, per_rack=2, placement="complementary")
    assert apart == pytest.approx({"a": 100.0, "b": 100.0})


def test_without_uplinks_racks_slow_nobody() -> None:
    assert ends((0, 3, 100), (50, 3, 50), nodes=6, per_rack=2, uplink=0.0) == pytest.approx({"a": 100.0, "b": 100.0})


def steps(uplink: float) -> StepTimes:
    """Eight nodes of eight V100, two below each switch."""
    nodes = load_nodes("8x8:V100").nodes
    return StepTimes(
        SharedCluster(
            nodes=tuple(replace(node, rack=str(n // 2), switch=str(n // 2)) for n, node in enumerate(nodes)),
            uplink=uplink,
        ),
        hardware={"V100": "p3.16xlarge"},
    )


WHAT = What(MLP, 3200, "dp=32")


def test_an_uplink_slows_a_job_alone_only_if_it_is_smaller_than_its_nics() -> None:
    """Two nodes of 25 Gbit/s below each switch need 50 Gbit/s at most."""
    place = on((8,) * 4, racks=("0", "0", "1", "1"))
    seconds = {uplink: (found := steps(uplink * GBIT)).step_s(WHAT, found.where(place)) for uplink in (10, 50, 400)}
    assert seconds[10] > seconds[50] == pytest.approx(seconds[400])


def test_forecast_jobs_slow_one_another_down_by_what_both_send_through_an_uplink() -> None:
    place = on((8,) * 4, racks=("0", "0", "1", "1"))
    found = []
    for uplink in (25.0, 50.0, 100.0, 1000.0):
        contention = ForecastContention(steps(uplink * GBIT))
        guest = Guest(WHAT, contention.steps.where(place))
        found.append(contention.slowdowns((guest, guest), at="switch")[0])
    assert 1.0 < found[0] < 2.0
    assert found == sorted(found, reverse=True)
    assert found[-1] == 1.0
    assert (
        contention.steps.switch_program(What(MLP, 1600), contention.steps.where(on((8, 8), racks=("0", "0")))) is None
    )


def test_a_larger_uplink_never_slows_a_queue(tmp_path: Path) -> None:
    rows = (f'{name},0,24,"{MLP}",2400,2000' for name in "abcd")
    jobs = log(tmp_path, *rows)
    made = [
        schedule(
            jobs, nodes="12x8:V100", hardware={"V100": "p3.16xlarge"}, nodes_per_rack=2, uplink=rate * GBIT,
            share="blind",
        )
        for rate in (10.0, 40.0, 1000.0)
    ]  # fmt: skip
    times = [each.metrics.mean_jct_s for each in made]
    assert times[0] > times[1] > times[2]
    assert made[0].metrics.mean_slowdown > 1.0
    assert made[2].metrics.mean_slowdown == pytest.approx(1.0)


def test_uplinks_without_racks_are_refused() -> None:
    with pytest.raises(RequestError, match="uplinks need racks"):
        load_shared_cluster("4x8", uplink=1e9)
    with pytest.raises(RequestError, match="expected a rate"):
        load_shared_cluster("4x8", nodes_per_rack=2, uplink=-1.0)


def test_two_jobs_whose_messages_an_uplink_bounds_take_nearly_twice_as_long() -> None:
    """An uplink of a tenth of the NICs: a step is almost all communication, of which two jobs have half each."""
    place = on((8,) * 4, racks=("0", "0", "1", "1"))
    contention = ForecastContention(steps(5.0 * GBIT))
    guest = Guest(WHAT, contention.steps.where(place))
    program = contention.steps.switch_program(WHAT, guest.where)
    assert program is not None
    assert 0.9 < program.most("switch_send") <= 1.0
    assert contention.slowdowns((guest, guest), at="switch")[0] == pytest.approx(1.9, abs=0.1)
