"""Habits of a framework's releases: which apply, and that models without experts are not affected."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from traincast import RequestError, Runtime, capture, load_cluster, load_runtime, predict
from traincast.strategy import load_precision, releases
from traincast.strategy.releases import assumed_release, has_experts, newest, settled

MIXTURE = "deepseek-v2-lite"
DENSE = "gpt:layers=2,hidden=64,heads=4,vocab=100,seq=16"


def _settled(spec: str, *, cluster: str = "dgx-gb300:2", precision: str = "fp8", model: str = MIXTURE) -> Runtime:
    return settled(
        load_runtime(spec),
        graph=capture(model),
        cluster=load_cluster(cluster),
        precision=load_precision(precision),
    )


def test_habits_accumulate_with_releases() -> None:
    first, rack, newest_ = (_settled(f"megatron-bridge:release={r}") for r in ("25.09", "26.04", "26.06.01"))
    assert (first.experts.dispatcher, first.experts.grouped) == ("all_to_all", "looped")
    assert (rack.experts.dispatcher, rack.experts.grouped) == ("fused", "looped")
    assert (newest_.experts.dispatcher, newest_.experts.grouped) == ("fused", "fused")
    assert [r.launches.cuda_graphs for r in (first, rack, newest_)] == [False, False, True]
    assert first.habits == rack.habits == newest_.habits == ()


def test_habits_depend_on_precision_and_machine() -> None:
    assert _settled("megatron-bridge:release=26.06", precision="bf16").experts.grouped == "looped"
    assert _settled("megatron-bridge:release=26.06", cluster="dgx-b300:1").experts.grouped == "looped"
    assert _settled("megatron-bridge:release=26.06", cluster="dgx-b300:1").experts.dispatcher == "fused"
    assert _settled("megatron-bridge:release=26.06", cluster="dgx-h100:1").experts.dispatcher == "all_to_all"


def test_a_habit_may_leave_out_models_with_state_space_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(releases, "_is_hybrid", lambda graph: True)
    assert not _settled("megatron-bridge:release=26.06").launches.cuda_graphs
    assert _settled("megatron-bridge:release=26.06").experts.dispatcher == "fused"


def test_without_a_release_the_newest_counts_and_is_said() -> None:
    given = load_runtime("megatron-bridge")
    used = _settled("megatron-bridge")
    assert used == _settled(f"megatron-bridge:release={newest(given)}")
    assert newest(given) == "26.06"
    (said,) = assumed_release("megatron-bridge", used)
    assert said.startswith("the release of megatron-bridge is not stated: its habits with experts are those of 26.06")
    assert assumed_release("megatron-bridge:release=26.06", used) == ()


def test_models_without_experts_are_not_affected() -> None:
    used = _settled("megatron-bridge:release=26.06", model=DENSE)
    assert used == replace(load_runtime("megatron-bridge"), release="26.06", habits=())
    assert has_experts(capture(MIXTURE))
    assert not has_experts(capture(DENSE))


def test_a_forecast_says_which_release_it_assumed() -> None:
    def warnings(runtime: str, model: str = MIXTURE) -> list[str]:
        made = predict(model, cluster="dgx-h100:1", global_batch=8, strategy="dp=8,micro_batch=1", runtime=runtime)
        return [w for w in made.report.warnings if "release" in w]

    assert len(warnings("megatron-bridge")) == 1
    assert warnings("megatron-bridge:release=26.04") == []
    assert warnings("megatron-bridge", model=DENSE) == []


def test_a_later_release_of_the_same_run_is_not_slower() -> None:
    def seconds(release: str) -> float:
        made = predict(
            "qwen3-30b-a3b",
            cluster="dgx-gb300:2",
            global_batch=128,
            strategy="dp=8,ep=8,zero=1,micro_batch=4",
            precision="fp8",
            runtime=f"megatron-bridge:release={release}",
        )
        return made.report.step_s

    first, rack, graphs = (seconds(release) for release in ("25.09", "25.11", "26.06"))
    assert 0.6 * first < rack < 0.95 * first
    assert 0.5 * rack < graphs < 0.9 * rack


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("megatron-bridge:release=abc", "release 'abc' of megatron-bridge: expected a number such as 26.04"),
        ("megatron-bridge:release=", "expected a number such as 26.04"),
        ("pytorch:release=2.4", "runtime pytorch has no habits that depend on its release"),
    ],
)
def test_a_release_that_means_nothing_is_refused(spec: str, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        load_runtime(spec)


def test_habits_of_a_users_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        '[[habits]]\nsince = "2"\nexperts.routing_launches = 7\nmemory.counter = "device"\n', encoding="utf-8"
    )
    assert _settled(f"{path}:release=1").experts.routing_launches == 0.0
    later = _settled(f"{path}:release=2.1")
    assert (later.experts.routing_launches, later.memory.counter) == (7.0, "device")
    assert load_runtime(str(path)).to_dict()["habits"][0]["memory"] == {"counter": "device"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("experts.routing_launch = 7", r"habits\[0\].experts has unknown key 'routing_launch'"),
        ("experts.routing_launches = -7", r"habits\[0\].experts.routing_launches is -7: expected a number from 0"),
        ("routing_launches = 7", r"habits\[0\] routing_launches stands in \[experts\] now"),
        ("until = '3'", r"habits\[0\] has unknown key 'until'"),
    ],
)
def test_a_wrong_habit_is_refused(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f"[[habits]]\n{text}\n", encoding="utf-8")
    with pytest.raises(RequestError, match=said):
        load_runtime(str(path))
