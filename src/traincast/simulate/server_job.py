"""Makes a run with parameter servers from the seconds of works: adds them up by piece of the model, and simulates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from traincast.ask import Conditions
from traincast.graph.optimizers import optimizer_called
from traincast.simulate.conditions import compute_factors
from traincast.simulate.server_timeline import ServerJob
from traincast.simulate.servers import SERVER_STEPS, run_servers
from traincast.strategy import Lowered, Mesh, Request
from traincast.strategy.prepare import exchanged_parts
from traincast.strategy.program.block import BlockProgram
from traincast.strategy.program.item import Item
from traincast.strategy.servers.setup import Piece, setup_on
from traincast.strategy.uneven import prepared_for
from traincast.work import Work

Floats = npt.NDArray[np.float64]


def run_job(
    request: Request,
    lowered: Lowered,
    *,
    seconds_of: Callable[[Sequence[Work]], Floats],
    conditions: Conditions,
) -> ServerJob:
    """Simulates some steps of ``request``, whose workers exchange gradients and weights through parameter servers.

    ``lowered`` is the step of the workers without any exchange. ``seconds_of`` returns the seconds of works on each
    kind of device of the workers: [kinds, works]. Workers with other shares of the batch are kinds of their own.
    """
    strategy, count = request.strategy, request.strategy.num_microbatches
    samples = strategy.samples(request.global_batch)
    sizes = sorted(set(samples), reverse=True)
    by_size = [exchanged_parts(lowered.request, prepared) for prepared in prepared_for(lowered, sizes)]
    items = [i for parts in by_size for program, _ in parts for i in (*program.forward, *program.backward)]
    works: list[Work] = list(dict.fromkeys([*(i.work for i in items), *(i.launches for i in items)]))
    seconds = np.repeat(seconds_of(works), len(sizes), axis=0)
    number = {work: n for n, work in enumerate(works)}
    parts_of_kind = by_size * (len(seconds) // len(sizes))
    kinds = [_pieces(parts, count, number, own) for parts, own in zip(parts_of_kind, seconds.tolist(), strict=True)]
    pieces = tuple(replace(first, elsewhere=tuple(others)) for first, *others in zip(*kinds, strict=True))
    states = max(
        (optimizer_called(u.optimizer).states for program, _ in by_size[0] for u in program.updated), default=0
    )
    factors = compute_factors(conditions, strategy.dp).tolist()
    setup = setup_on(
        request.cluster,
        strategy,
        update_bytes=2.0 + 2.0 * (1 + states),
        factors=tuple(factors) if set(factors) != {1.0} else (),
        busy_network=conditions.busy_network,
        interference=conditions.interference,
    )
    kind_of_worker = [
        kind * len(sizes) + sizes.index(own) for kind, own in zip(setup.kind_of_worker, samples, strict=True)
    ]
    setup = replace(setup, kind_of_worker=tuple(kind_of_worker))
    return ServerJob(
        setup=setup,
        pieces=pieces,
        programs=tuple(tuple(program for program, _ in parts) for parts in parts_of_kind),
        num_microbatches=count,
        works=tuple(works),
        seconds=seconds,
        mesh=Mesh.of(strategy, request.cluster),
        run=run_servers(setup, pieces, steps=SERVER_STEPS),
    )


def _pieces(
    parts: Sequence[tuple[BlockProgram, float]], count: int, number: dict[Work, int], seconds: Sequence[float]
) -> list[Piece]:
    """One piece per block, with the seconds of all ``count`` microbatches on one kind of device.

    ``number`` maps each work to its entry in ``seconds``.
    """

    def both(items: tuple[Item, ...]) -> tuple[float, float]:
        device, host = (seconds[number[i.work]] for i in items), (seconds[number[i.launches]] for i in items)
        return sum(device) * count, sum(host) * count

    found = []
    for program, nbytes in parts:
        (forward_s, forward_host_s), (backward_s, backward_host_s) = both(program.forward), both(program.backward)
        found.append(
            Piece(
                forward_s=forward_s,
                backward_s=backward_s,
                nbytes=nbytes,
                forward_host_s=forward_host_s,
                backward_host_s=backward_host_s,
            )
        )
    return found
