"""The whole job: its steps, its other parts, its cost and its energy."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from traincast.ask import JobSettings
from traincast.cluster import Cluster
from traincast.errors import RequestError, expect
from traincast.graph import OperatorGraph, Phase
from traincast.strategy import Request
from traincast.strategy.prepare import kept_precision
from traincast.units import HOUR


@dataclass(frozen=True, slots=True, kw_only=True)
class JobForecast:
    """Seconds of a job by part, its cost (US dollars) and its energy (joules)."""

    num_steps: int
    startup_s: float
    data_loading_s: float
    steps_s: float
    checkpoints_s: float
    evaluation_s: float
    cost: float
    energy_j: float

    @property
    def job_s(self) -> float:
        """Seconds of all parts together."""
        return self.startup_s + self.data_loading_s + self.steps_s + self.checkpoints_s + self.evaluation_s

    def to_dict(self) -> dict[str, float]:
        """Return the parts by name, and their sum."""
        return {**asdict(self), "job_s": self.job_s}


def steps_of(
    graph: OperatorGraph, global_batch: int, *, tokens: int | None, samples: int | None, steps: int | None
) -> int | None:
    """Return the number of steps of a job from its length in one unit, or ``None`` if no length is given."""
    given = [n for n, v in (("tokens", tokens), ("samples", samples), ("steps", steps)) if v is not None]
    for name, value in (("tokens", tokens), ("samples", samples), ("steps", steps)):
        expect(name, value, (int, float, type(None)), "a number above zero")
        if value is not None and not 0 < value < math.inf:
            raise RequestError(f"{name} is {value}: expected a number above zero")
    if len(given) > 1:
        raise RequestError(f"{' and '.join(given)} are given: state the length of the job in one unit only")
    if tokens is not None:
        if not graph.tokens_per_sample:
            raise RequestError(f"tokens are given, but {graph.name} has no tokens: give samples or steps")
        return max(1, math.ceil(tokens / (global_batch * graph.tokens_per_sample)))
    if samples is not None:
        return max(1, math.ceil(samples / global_batch))
    return steps


def job_of_steps(
    request: Request, *, num_steps: int, step_s: float, computing: float, settings: JobSettings
) -> JobForecast:
    """Return the job of ``num_steps`` steps of ``request``, each of ``step_s`` seconds.

    ``computing`` is the share of a step in which the devices of its ranks compute.
    """
    graph, precision = request.graph, kept_precision(request)
    updates = [op for op, _ in graph if op.phase is Phase.OPTIMIZER]
    states, optimizer = max((len(op.inputs) - 2 for op in updates), default=0), updates[0].name if updates else ""
    trained = graph.num_trainable_parameters
    state_bytes = precision.optimizer_bytes(trained, states, optimizer)
    frozen_bytes = 0.0
    if "fine_tuning" in graph.attributes:
        state_bytes += trained * precision.weights.nbytes
        frozen_bytes = (graph.num_parameters - trained) * precision.frozen_weights.nbytes
    else:
        state_bytes += graph.num_parameters * precision.weights.nbytes
    return forecast_job(
        num_steps=num_steps,
        step_s=step_s,
        busy=computing * (request.strategy.num_ranks / request.cluster.num_devices),
        forward_share=1 / 3,
        state_bytes=state_bytes,
        frozen_bytes=frozen_bytes,
        samples_per_step=request.global_batch,
        tokens_per_sample=graph.tokens_per_sample,
        cluster=request.cluster,
        settings=settings,
    )


def forecast_job(
    *,
    num_steps: int,
    step_s: float,
    busy: float,
    forward_share: float,
    state_bytes: float,
    samples_per_step: int,
    tokens_per_sample: int,
    cluster: Cluster,
    settings: JobSettings,
    frozen_bytes: float = 0.0,
) -> JobForecast:
    """Return the time, cost and energy of a job of ``num_steps`` steps.

    ``busy`` is the share of a step in which devices compute, ``state_bytes`` the size of a checkpoint. Weights of
    ``frozen_bytes`` are loaded at the start, and not written to checkpoints. Loading of data
    overlaps the step; only the part that exceeds the step adds time.
    """
    doublings = max(0, (cluster.num_nodes - 1).bit_length())
    startup = settings.startup_s + settings.startup_per_doubling_s * doublings
    startup += (state_bytes + frozen_bytes) / (cluster.storage_bandwidth * cluster.num_nodes)
    per_sample = tokens_per_sample * settings.bytes_per_token if tokens_per_sample else settings.bytes_per_sample
    loading = samples_per_step * per_sample / (cluster.storage_bandwidth * cluster.num_nodes)
    steps = num_steps * step_s
    checkpoints = max(1.0, steps / settings.checkpoint_every_s)
    evaluations = num_steps // settings.evaluate_every_steps
    job = JobForecast(
        num_steps=num_steps,
        startup_s=startup,
        data_loading_s=loading + num_steps * max(0.0, loading - step_s),
        steps_s=steps,
        checkpoints_s=checkpoints * state_bytes / (cluster.storage_bandwidth * cluster.num_nodes),
        evaluation_s=evaluations * settings.evaluation_steps * step_s * forward_share,
        cost=0.0,
        energy_j=0.0,
    )
    cost, energy = price_per_s(cluster) * job.job_s, power_w(cluster, busy) * job.job_s
    return JobForecast(**{**asdict(job), "cost": cost, "energy_j": energy})


def price_per_s(cluster: Cluster) -> float:
    """Return the price of the whole cluster, in US dollars per second."""
    per_hour = cluster.price_per_node_hour * cluster.num_nodes or cluster.device.price_per_hour * cluster.num_devices
    return per_hour / HOUR + sum(price_per_s(host) for host in cluster.hosts)


def power_w(cluster: Cluster, busy: float) -> float:
    """Return the power of the whole cluster in watts; devices compute a share ``busy`` of the time."""
    if cluster.parts:
        beside = sum(power_w(host, 1.0) for host in cluster.hosts)
        return sum(power_w(part, busy) for part in cluster.parts) + beside
    host = max(0.0, cluster.node_power_w - cluster.devices_per_node * cluster.device.tdp_w) * cluster.num_nodes
    # A device draws about a third of its rating when it waits.
    devices = cluster.num_devices * cluster.device.limit_w * (0.3 + 0.7 * busy)
    return devices + host + sum(power_w(other, 1.0) for other in cluster.hosts)
