"""Other forecasters beside Traincast: what they are asked, the naive one, and those that are missing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from benchmarks.peers.__main__ import PEERS, Pair, Run, compare, found_peers, main, text, weighted
from benchmarks.peers.calculon import _application, _execution
from benchmarks.peers.case import NotExpressibleError, case_of
from benchmarks.peers.naive import SHARE, Naive

from tests.conftest import GPT, LLAMA, request_of
from traincast.measured import Measured
from traincast.strategy import Request


def test_the_naive_peer_divides_the_flops_of_a_transformer_by_two_fifths_of_the_peak() -> None:
    """72 b s l h² (1 + s/6h + v/12lh): D. Narayanan et al., SC 2021, without recomputation."""
    request = request_of("dp=4,tp=2", model=GPT, global_batch=16)
    layers, hidden, seq, vocab, batch = 4, 256, 128, 1000, 16
    flops = 72 * batch * seq * layers * hidden**2 * (1 + seq / (6 * hidden) + vocab / (12 * layers * hidden))
    peak = request.cluster.device.peak("bf16")
    assert Naive().seconds(request) == pytest.approx(flops / (SHARE * 8 * peak), rel=0.01)


def test_a_dense_decoder_is_asked_by_its_dimensions() -> None:
    case = case_of(request_of("dp=1,tp=2,microbatches=8", model=LLAMA))
    sizes = case.layers, case.hidden, case.heads, case.kv_heads, case.head_dim, case.ffn, case.vocab, case.seq
    assert sizes == (4, 256, 8, 4, 32, 768, 1000, 128)
    assert (case.gated, case.micro_batch, case.compute) == (True, 2, "bf16")
    assert case.layers * case.block_weights + 2 * 1000 * 256 == pytest.approx(
        case.request.graph.num_parameters, rel=0.001
    )


@pytest.mark.parametrize("changes", [{"cp": 2}, {"offload": ("optimizer",)}, {"layers": (4,)}, {"shares": (2, 1)}])
def test_what_peers_cannot_express_is_refused(changes: dict[str, object]) -> None:
    request = request_of("dp=2")
    with pytest.raises(NotExpressibleError):
        case_of(replace(request, strategy=replace(request.strategy, **changes)))  # type: ignore[arg-type]


def test_a_mixture_of_experts_and_a_run_without_update_are_refused() -> None:
    mixture = "moe:layers=2,hidden=256,heads=8,experts=4,top_k=2,expert_ffn=512,vocab=1000,seq=128"
    with pytest.raises(NotExpressibleError, match="dense"):
        case_of(request_of("dp=1", model=mixture))
    with pytest.raises(NotExpressibleError, match="optimizer"):
        case_of(request_of("dp=1", optimizer=False))


@pytest.mark.parametrize("model", [GPT, LLAMA])
def test_a_block_of_calculon_has_the_weights_of_the_model(model: str) -> None:
    case = case_of(request_of("dp=1", model=model))
    said = _application(case)
    weights = 2 * said["hidden"] * said["feedforward"] + 4 * said["hidden"] * said["attn_heads"] * said["attn_size"]
    assert weights == case.block_weights


def test_calculon_keeps_groups_in_a_node_as_far_as_they_fit() -> None:
    said = _execution(case_of(request_of("dp=2,tp=4,pp=2,microbatches=2")))
    assert (said["tensor_par_net"], said["data_par_net"], said["pipeline_par_net"]) == (0, 0, 1)


def test_a_peer_that_is_missing_is_skipped_with_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert list(found_peers(dict.fromkeys(PEERS, tmp_path))) == []
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" is skipped")[0] for line in lines] == ["Calculon", "llm-analysis", "SimuMax"]
    assert all(option in line for option, line in zip(PEERS, lines, strict=True))


def test_sources_weigh_the_same_however_many_rows_they_have() -> None:
    pairs = [Pair(source="a", role="judge", peer=error, own=0.0) for error in (1.0, 2.0, 9.0)]
    pairs.append(Pair(source="b", role="judge", peer=10.0, own=0.0))
    assert weighted(pairs, lambda pair: pair.peer) == (6.0, 7.0)


class Refusing(Naive):
    """A peer that can express requests on one device only."""

    def seconds(self, request: Request) -> float:
        """Return one second, or refuse."""
        if request.strategy.num_ranks > 1:
            raise NotExpressibleError("many devices")
        return 1.0


def test_a_peer_and_traincast_are_compared_on_the_rows_that_the_peer_can_express() -> None:
    runs = [
        Run(source="a", role="judge", seconds=2.0, forecast=3.0, measured=Measured(index=0, request=r, seconds=2.0))
        for r in (request_of("dp=1"), request_of("dp=2"))
    ]
    made = compare(Refusing(), runs)
    assert made.pairs == [Pair(source="a", role="judge", peer=50.0, own=50.0)]
    assert made.refused == {"many devices": 1}
    assert "| 40 % MFU, judge | 1 | 1 | 50.0 % / 50.0 % | 50.0 % / 50.0 % | 1.00 / 1.00 |" in text(
        [made], rows=2, most=9
    )


def test_a_table_of_steps_is_compared_from_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"source": "us", "model": GPT, "gpu": "A100-SXM4-80GB", "n_gpus": 8, "dp": 8, "micro_batch": 2}
    pq.write_table(
        pa.Table.from_pylist([{**row, "seq": 128, "step_time_s": s} for s in (0.1, 0.2)]), tmp_path / "steps.parquet"
    )
    main([str(tmp_path), "--most", "1", *(word for option in PEERS for word in (option, str(tmp_path)))])
    lines = capsys.readouterr().out.splitlines()
    assert "; 1 rows, at most 1 of a source. Peers: none." in lines[0]
    assert [line.split(" | ")[:3] for line in lines if "40 % MFU, " in line] == [["| 40 % MFU, new", "1", "1"]]
