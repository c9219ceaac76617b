"""Jobs that meet on a node: exact times of slowed jobs, placements that keep them apart, and forecast slowdowns."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scheduling.described import MLP, log
from tests.scheduling.queues import job, queue, spans
from traincast import Costs, FailureEvent, Failures, Job, RequestError, SharedCluster, UnknownNameError, schedule
from traincast.scheduling import PlacedGpus, measure, simulate
from traincast.scheduling.sharing.contention import SHARES, Guest, MeetingPlace, placement_of
from traincast.scheduling.sharing.step_times import What, Where


class Crowded:
    """Jobs that span nodes take as many times as long as there are on a node; jobs of one node draw nothing."""

    def guest(self, job: Job, placed: PlacedGpus) -> Guest | None:
        """Return a guest for jobs on several nodes, named by the job."""
        return Guest(What(job.job_id, 1), Where("", 0, 0, 0)) if len(placed.nodes) > 1 or job.num_gpus < 1 else None

    def slowdowns(self, guests: tuple[Guest, ...], *, at: MeetingPlace) -> tuple[float, ...]:
        """Return the number of guests, for each."""
        return (float(len(guests)),) * len(guests)


def ends(jobs: list[Job], *, nodes: int = 3, gpus: int = 4, **more: object) -> dict[str, float]:
    outcome = simulate(
        jobs,
        SharedCluster.uniform(nodes, gpus),
        placement="consolidated",
        contention=Crowded(),
        **more,  # type: ignore[arg-type]
    )
    return {fate.job_id: fate.end_s for fate in outcome.fates}


def test_a_job_is_slow_only_while_it_meets_another() -> None:
    """Two jobs of 6 GPUs share the node in the middle: the first alone for 100 s, then both at half speed."""
    assert ends(queue((0, 6, 200), (100, 6, 100))) == pytest.approx({"a": 300.0, "b": 300.0})
    assert ends(queue((0, 6, 200), (100, 6, 50))) == pytest.approx({"a": 250.0, "b": 200.0})
    assert ends(queue((0, 6, 100), (100, 6, 50))) == pytest.approx({"a": 100.0, "b": 150.0})


def test_jobs_that_draw_nothing_meet_nobody() -> None:
    assert ends(queue((0, 2, 100), (0, 2, 100), (0, 6, 100))) == pytest.approx({"a": 100.0, "b": 100.0, "c": 100.0})


def test_what_neighbours_cost_is_measured() -> None:
    outcome = simulate(
        queue((0, 6, 200), (100, 6, 100)), SharedCluster.uniform(3, 4), placement="consolidated", contention=Crowded()
    )
    assert [fate.shared_s for fate in outcome.fates] == pytest.approx([100.0, 100.0])
    assert [fate.slowdown for fate in outcome.fates] == pytest.approx([1.5, 2.0])
    assert measure(outcome).mean_slowdown == pytest.approx(1.75)
    assert measure(outcome).overhead_gpu_s == pytest.approx(0.0, abs=1e-6)
    assert spans(outcome) == {"a": [(0.0, 300.0)], "b": [(100.0, 300.0)]}


def test_a_preempted_job_keeps_what_it_did_slowly() -> None:
    """Shortest first: c, of 12 GPUs and 10 s, preempts both at 200 s, when each has done 50 s since they met."""
    jobs = [*queue((0, 6, 200), (100, 6, 150)), job(200, 12, 10, job_id="c")]
    assert ends(jobs, policy="srtf") == pytest.approx({"c": 210.0, "a": 310.0, "b": 360.0})


def test_a_failure_undoes_slow_work_as_it_was_done() -> None:
    """Without checkpoints, a job that fails at 150 s has done 100 s alone and 25 s beside the other: all is lost."""
    failure = FailureEvent(time_s=150.0, kind="node", target="node0", repair_s=0.0)
    outcome = simulate(
        queue((0, 6, 200), (100, 6, 100)), SharedCluster.uniform(3, 4), placement="consolidated",
        contention=Crowded(), failures=Failures(events=(failure,)), costs=Costs(),
    )  # fmt: skip
    first = outcome.fates[0]
    assert first.lost_s == pytest.approx(125.0)
    assert first.restarts == 1
    assert [fate.end_s for fate in outcome.fates] == pytest.approx([425.0, 300.0])


def test_a_share_of_a_gpu_is_all_of_it_for_a_job_alone() -> None:
    """Times of jobs on half a GPU count half of its speed; alone it has all of it, and two have half each."""
    assert ends([job(0, 0.5, 100, job_id="a")]) == pytest.approx({"a": 50.0})
    assert ends([job(0, 0.5, 100, job_id="a"), job(0, 0.5, 100, job_id="b")]) == pytest.approx({"a": 100.0, "b": 100.0})


@pytest.mark.parametrize("share", SHARES)
def test_every_way_to_share_finishes_every_job(share: str) -> None:
    jobs = queue(*((10.0 * n, (1, 3, 6, 0.5, 2)[n % 5], 50.0 + n) for n in range(20)))
    outcome = simulate(jobs, SharedCluster.uniform(4, 4), placement=SHARES[share], contention=Crowded())
    assert all(fate.end_s > 0 for fate in outcome.fates)
    if share == "exclusive":
        for one in outcome.segments:
            for other in outcome.segments:
                apart = one.end_s <= other.start_s or other.end_s <= one.start_s
                assert one is other or apart or not set(one.allocation.nodes) & set(other.allocation.nodes)


class Picky(Crowded):
    """Two jobs that span nodes suit each other unless both are loud."""

    def slowdowns(self, guests: tuple[Guest, ...], *, at: MeetingPlace) -> tuple[float, ...]:
        """Return 2 for jobs that are loud together."""
        loud = sum(guest.what.model.startswith("loud") for guest in guests)
        return tuple(2.0 if loud > 1 and guest.what.model.startswith("loud") else 1.0 for guest in guests)


def test_complementary_jobs_share_nodes_and_others_do_not() -> None:
    names = ("loud1", "quiet1", "loud2", "quiet2")
    jobs = [job(float(n), 6, 100, job_id=name) for n, name in enumerate(names)]
    found = {}
    for placement in ("consolidated", "complementary"):
        outcome = simulate(jobs, SharedCluster.uniform(8, 4), placement=placement, contention=Picky())
        found[placement] = {fate.job_id: fate.end_s - fate.start_s for fate in outcome.fates}
    assert found["complementary"] == dict.fromkeys(names, 100.0)
    swapped = [jobs[0], jobs[2], jobs[1], jobs[3]]
    swapped = [job(float(n), 6, 100, job_id=each.job_id) for n, each in enumerate(swapped)]
    blind = simulate(swapped, SharedCluster.uniform(8, 4), placement="consolidated", contention=Picky())
    suited = simulate(swapped, SharedCluster.uniform(8, 4), placement="complementary", contention=Picky())
    assert max(fate.end_s - fate.start_s for fate in blind.fates) > 150.0
    assert [fate.end_s - fate.start_s for fate in suited.fates] == pytest.approx([100.0] * 4)


ROWS = ("a,0,12,MLP,1200,2000", "b,0,12,MLP,1200,2000", "c,10,4,MLP,400,2000")


@pytest.mark.long(guard="test_jobs_with_parameter_servers_meet_node_by_node")
def test_forecast_jobs_slow_one_another_down_on_the_nodes_that_they_share(tmp_path: Path) -> None:
    jobs = log(tmp_path, *(row.replace("MLP", f'"{MLP}"') for row in ROWS))
    made = {
        share: schedule(jobs, nodes="3x8:V100", hardware={"V100": "p3.16xlarge"}, share=share)
        for share in ("exclusive", "blind")
    }
    alone, beside = made["exclusive"], made["blind"]
    assert alone.metrics.mean_slowdown == pytest.approx(1.0)
    assert 1.0 < beside.metrics.mean_slowdown < 2.0
    assert beside.fates[0].slowdown > 1.0
    assert beside.fates[2].slowdown == 1.0  # on one node: it sends nothing to others
    assert alone.fates[1].start_s > beside.fates[1].start_s


def test_jobs_with_parameter_servers_meet_node_by_node(tmp_path: Path) -> None:
    """Two jobs of 12 GPUs on three nodes of 8: one of the two nodes of each is also the other's."""
    columns = "job_id,submit_s,num_gpus,model,batch,steps,strategy"
    rows = (f'{name},0,12,"{MLP}",1200,2000,"dp=12,servers=2"' for name in "ab")
    jobs = log(tmp_path, *rows, columns=columns)
    made = schedule(jobs, nodes="3x8:V100", hardware={"V100": "p3.16xlarge"}, share="blind")
    assert [len(segment.allocation.nodes) for segment in made.outcome.segments] == [2, 2]
    assert all(1.0 < fate.slowdown < 2.0 for fate in made.fates)


def test_ways_to_share_are_checked(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="share"):
        placement_of("blindly", "pooled")
    with pytest.raises(RequestError, match="placement of its own"):
        placement_of("exclusive", "spread")
    assert placement_of("blind", "spread") == "spread"
    with pytest.raises(RequestError, match="states what it trains"):
        schedule(queue((0, 4, 100)), nodes="1x8", share="blind")
