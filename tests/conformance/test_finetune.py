"""Fine-tuning × models × strategies × runtimes: each runs soundly, and a search means the same step as a forecast."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Final

import pytest

from tests.conformance.test_strategies import MODELS, OPTIONS, SPREADS, check_foldings, check_refusal, check_report
from tests.conftest import CNN, check_timeline, request_of
from tests.searching.test_contract import compare, random_problem
from traincast import RequestError
from traincast.forecast import forecast
from traincast.graph.tuning.tune import fine_tuned, parse_fine_tuning
from traincast.strategy import runtime_names

TUNINGS: Final[tuple[tuple[str | None, tuple[str, ...], str | None], ...]] = (
    ("rank=8,targets=attention", (), None),
    ("rank=8,targets=attention+mlp,dropout=0.1", (), "4"),
    ("rank=8,targets=all,compute=fp32", (), "8"),
    ("rank=8,targets=q+v,dtype=model", (), None),
    (None, ("embedding", "layers.[01]"), None),
    (None, ("layers.*.mlp",), "gptq"),
)
"""``--lora``, ``--freeze`` and ``--quantize``."""


@pytest.mark.long(but=8)
@pytest.mark.parametrize("seed", range(40))
def test_fine_tuning_runs_soundly_with_every_strategy(seed: int) -> None:
    chosen = random.Random(seed)
    strategy = ",".join(filter(None, (chosen.choice(SPREADS), "num_microbatches=4", chosen.choice(OPTIONS))))
    tuning = TUNINGS[seed % len(TUNINGS)]
    try:
        request = request_of(
            strategy,
            model=MODELS[chosen.choice(sorted(MODELS))],
            runtime=chosen.choice(runtime_names()),
            global_batch=48,
        )
        made = forecast(replace(request, graph=fine_tuned(request.graph, parse_fine_tuning(*tuning))))
    except RequestError as error:
        check_refusal(str(error))
        return
    check_report(made)
    check_timeline(made.timeline)
    check_foldings(made)


@pytest.mark.long(but=1)
@pytest.mark.parametrize("seed", range(12))
def test_a_search_of_a_fine_tuned_model_means_the_same_step(seed: int) -> None:
    chosen = random.Random(seed)
    problem = random_problem(chosen)
    tuning = (None, ("layer1",), None) if problem.request.graph.name == CNN else TUNINGS[seed % len(TUNINGS)]
    try:
        graph = fine_tuned(problem.request.graph, parse_fine_tuning(*tuning))
    except RequestError as error:
        check_refusal(str(error))
        return
    compare(replace(problem, request=replace(problem.request, graph=graph)), chosen)
