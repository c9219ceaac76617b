"""Engines: the same results from every number of workers and from Ray, whoever dies on the way."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.searching.problems import exhausted
from tests.searching.test_explore import PARTED, by_engine, same
from traincast import (
    Engine,
    MissingDependencyError,
    RequestError,
    SimulationError,
    TraincastError,
    UnknownNameError,
    load_engine,
)
from traincast.engines import ENGINES, local_engine, ray_engine

HERE = "tests.engines.workers"
ROOT = Path(__file__).parents[2]
needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="needs Ray, which make test-all installs"
)


def results(engine: Engine, setup: str, payload: Any, tasks: list[Any]) -> list[Any]:
    """Results in the order of the tasks; each is reported once, and in this process and thread."""
    found: dict[int, Any] = {}

    def done(index: int, result: Any) -> None:
        assert index not in found
        assert threading.current_thread() is caller
        found[index] = result

    caller = threading.current_thread()
    engine.run(f"{HERE}:{setup}", payload, tasks, done=done)
    assert sorted(found) == list(range(len(tasks)))
    return [found[index] for index in range(len(tasks))]


def in_session(session: int) -> list[int]:
    """Processes of a session that still run."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            state, _, _, of, *_ = (entry / "stat").read_text().rpartition(")")[2].split()
        except (OSError, ValueError):
            continue
        if int(of) == session and state != "Z":
            found.append(int(entry.name))
    return found


def sleeper(make: str) -> subprocess.Popen[str]:
    """A process of its own session that runs tasks on an engine: two short ones, then some that do not end."""
    code = (
        "import multiprocessing, signal\n"
        "from traincast.engines import local_engine, ray_engine\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it\n"
        "try:\n"
        f"    {make}.run('{HERE}:sleeps', 0.5, [0, 0, 600, 600, 600], done=lambda *a: print(*a, flush=True))\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', len(multiprocessing.active_children()))\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def first_two(process: subprocess.Popen[str]) -> set[str]:
    assert process.stdout is not None
    return {process.stdout.readline(), process.stdout.readline()}


def wait_until_gone(session: int) -> None:
    """Wait for the last process of a session, which its own end must bring about soon."""
    deadline = time.monotonic() + 10
    while in_session(session) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert in_session(session) == []


@dataclass
class TwoNodes:
    """A Ray cluster of two nodes on this machine with one processor each, and a connection to it."""

    cluster: Any
    second: Any

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def connect(self) -> None:
        import ray

        ray.init(self.address, log_to_driver=False, logging_level="ERROR")


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoNodes]:
    with pytest.MonkeyPatch.context() as patch:
        # Where jsonschema finds this package, it builds a grammar for 2.5 s in each of Ray's dozen processes.
        folder = tmp_path_factory.mktemp("without")
        (folder / "rfc3987_syntax.py").write_text("raise ImportError\n")
        patch.setitem(sys.modules, "rfc3987_syntax", None)
        patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_DEDUP_LOGS_SKIP_REGEX", ".*")
        import ray
        from ray.cluster_utils import Cluster

        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        nodes = TwoNodes(cluster, cluster.add_node(num_cpus=1))
        nodes.connect()
        yield nodes
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture(scope="module", params=["1 worker", "2 workers", "3 workers", "ray"])
def engine(request: pytest.FixtureRequest) -> Engine:
    if request.param == "ray":
        return ray_engine(request.getfixturevalue("nodes").address)
    return local_engine(int(request.param[0]))


@pytest.fixture(scope="module", params=["2 workers", "ray"])
def apart(request: pytest.FixtureRequest) -> Engine:
    """An engine whose workers are other processes."""
    if request.param == "ray":
        return ray_engine(request.getfixturevalue("nodes").address)
    return local_engine(2)


def test_engines_are_loaded_by_name() -> None:
    assert sorted(ENGINES) == ["local", "ray"]
    assert load_engine("local") == local_engine(len(os.sched_getaffinity(0)))
    assert load_engine("local", workers=3) == local_engine(3)
    with pytest.raises(UnknownNameError, match="unknown engine 'dask': known are local, ray"):
        load_engine("dask")
    with pytest.raises(RequestError, match="the local engine takes no address, and 'head:6379' was given"):
        load_engine("local", address="head:6379")
    with pytest.raises(RequestError, match="workers is 0: expected at least 1"):
        load_engine("local", workers=0)


@needs_ray
def test_ray_is_loaded_by_name() -> None:
    assert load_engine("ray", workers=3, address="auto") == ray_engine("auto", workers=3)
    with pytest.raises(RequestError, match="workers is 0: expected at least 1"):
        load_engine("ray", workers=0)


def test_without_ray_the_way_to_install_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependencyError, match=r"running on a Ray cluster needs ray.*'traincast\[ray\]'"):
        ray_engine()


def test_workers_end_with_a_caller_that_is_killed() -> None:
    process = sleeper("local_engine(3)")
    assert first_two(process) == {"0 0.5\n", "1 0.5\n"}
    assert len(in_session(process.pid)) == 4
    process.kill()
    assert process.communicate(timeout=10) == ("", "")
    wait_until_gone(process.pid)


def test_an_error_of_the_caller_ends_the_workers() -> None:
    def done(index: int, result: float) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        local_engine(2).run(f"{HERE}:sleeps", 0.0, [0.0, 600.0, 600.0], done=done)
    assert multiprocessing.active_children() == []


def test_workers_are_set_up_once_and_one_worker_is_the_caller(tmp_path: Path) -> None:
    assert set(results(local_engine(1), "setups", str(tmp_path), list(range(9)))) == {(os.getpid(), 1)}
    assert len(list(tmp_path.iterdir())) == 1
    processes = {process for process, _ in results(local_engine(3), "setups", str(tmp_path), list(range(9)))}
    assert os.getpid() not in processes
    assert {path.name.partition("-")[0] for path in tmp_path.iterdir()} >= {str(process) for process in processes}
    assert len(list(tmp_path.iterdir())) <= 4
    assert multiprocessing.active_children() == []


@pytest.mark.long(but=1)
@pytest.mark.parametrize(("loaded", "forked"), [("json", "1"), ("ray", "0")])
def test_workers_are_forked_unless_a_package_with_threads_of_its_own_is_loaded(
    loaded: str, forked: str, tmp_path: Path
) -> None:
    code = (
        f"import {loaded}, pytest\n"  # a fork has pytest loaded, a new interpreter has not
        "from traincast.engines import local_engine\n"
        f"local_engine(2).run('{HERE}:setups', {str(tmp_path)!r}, [0, 1], done=lambda _, found: print(found[1]))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=120
    )
    assert ran.stdout.split() == [forked] * 2


def test_beside_other_threads_workers_are_not_forked(tmp_path: Path) -> None:
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        assert {forked for _, forked in results(local_engine(2), "setups", str(tmp_path), [0, 1])} == {0}
        payload = {"folder": str(tmp_path), "at": 2, "times": 1}
        assert results(local_engine(2), "killed", payload, [0, 2, 3]) == [0, 4, 9]
    finally:
        over.set()
        thread.join()


def test_numeric_libraries_of_a_worker_have_one_thread() -> None:
    (pools,) = results(local_engine(2), "threads", None, [0])
    assert set(pools) == {1}


def test_a_result_that_cannot_be_sent_is_an_error() -> None:
    with pytest.raises(SimulationError, match=r"^a task failed: TypeError: cannot pickle"):
        results(local_engine(2), "fails", "result", [3])


ON_RAY = pytest.param("ray", {"address": "127.0.0.1:1"}, marks=needs_ray)


@pytest.mark.parametrize(("name", "settings"), [("local", {"workers": 2}), ON_RAY])
def test_no_tasks_need_no_workers(name: str, settings: dict[str, Any]) -> None:
    assert results(load_engine(name, **settings), "nothing_of_that_name", None, []) == []


@pytest.mark.parametrize(("name", "settings"), [("local", {"workers": 1}), ("local", {"workers": 2}), ON_RAY])
def test_a_setup_that_is_not_there_is_a_wrong_request(name: str, settings: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=r"nothing_of_that_name.*expected package\.module:function"):
        results(load_engine(name, **settings), "nothing_of_that_name", None, [0])


@pytest.mark.long(but=lambda engine: None if engine == "ray" else engine)
def test_every_engine_gives_the_same_results(engine: Engine) -> None:
    found = results(engine, "powers", {"numbers": [1, 2, 3]}, list(range(8)))
    assert found == [3, 6, 14, 36, 98, 276, 794, 2316]
    assert all(type(value) is np.float64 for value in found)


@pytest.mark.long(but=lambda engine: None if engine == "ray" else engine)
def test_errors_come_with_their_class_and_message(engine: Engine) -> None:
    with pytest.raises(UnknownNameError, match=r"^unknown color 'gren': did you mean green$"):
        results(engine, "fails", "ours", list(range(6)))
    with pytest.raises(SimulationError, match=r"^a task failed: ValueError: three is too much; run with one local "):
        results(engine, "fails", "other", list(range(6)))
    with pytest.raises(SimulationError, match=r"^a task failed: SystemExit: enough; "):
        results(engine, "fails", "exit", list(range(6)))
    with pytest.raises(RequestError, match=r"^the setup cannot be$"):
        results(engine, "fails", "setup", [0])


@pytest.mark.long(but=lambda apart, **_: None if apart == "ray" else apart)
def test_a_worker_that_is_killed_is_replaced_and_only_its_task_tried_again(apart: Engine, tmp_path: Path) -> None:
    payload = {"folder": str(tmp_path), "at": 2, "times": 1}
    assert results(apart, "killed", payload, list(range(6))) == [0, 1, 4, 9, 16, 25]
    assert sorted(path.name[0] for path in tmp_path.iterdir()) == ["0", "1", "2", "2", "3", "4", "5"]


@pytest.mark.long(but=lambda apart, **_: None if apart == "ray" else apart)
def test_a_task_that_kills_every_worker_is_named(apart: Engine, tmp_path: Path) -> None:
    with pytest.raises(TraincastError, match=r"^task 1 \(7\) lost its worker 3 times, the last one "):
        results(apart, "killed", {"folder": str(tmp_path), "at": 7, "times": 99}, [1, 7])
    assert len(list(tmp_path.glob("7-*"))) == 3


@pytest.mark.long(but=1)
@pytest.mark.parametrize("make", ["local_engine(2)", "ray_engine(workers=2)"])
def test_an_interrupt_ends_all_workers_without_a_word(make: str, request: pytest.FixtureRequest) -> None:
    if make.startswith("ray"):
        request.getfixturevalue("nodes")  # for its environment; this one starts its own
    process = sleeper(make)
    assert first_two(process) == {"0 0.5\n", "1 0.5\n"}
    os.killpg(process.pid, signal.SIGINT)
    assert process.communicate(timeout=30) == ("interrupted 0\n", "")
    wait_until_gone(process.pid)


@pytest.mark.long(guard="test_without_ray_the_way_to_install_it_is_said")
def test_ray_closes_the_connection_that_it_opened_and_no_other(nodes: TwoNodes) -> None:
    import ray

    assert results(ray_engine(workers=1), "powers", {"numbers": [2]}, [3, 4]) == [8, 16]
    assert ray.is_initialized()
    ray.shutdown()
    try:
        assert results(ray_engine(nodes.address), "powers", {"numbers": [2]}, [3, 4]) == [8, 16]
        assert not ray.is_initialized()
        with pytest.raises(
            RequestError, match=r"^cannot reach Ray at 127\.0\.0\.1:1: ConnectionRefusedError: .*; start it with"
        ):
            results(ray_engine("127.0.0.1:1"), "powers", {"numbers": [2]}, [3, 4])
    finally:
        nodes.connect()


@pytest.mark.long(guard="searching/test_explore.py::test_the_number_of_workers_does_not_change_the_answer")
def test_a_search_on_ray_gives_the_answer_of_one_process(nodes: TwoNodes) -> None:
    problem, columns = exhausted(PARTED)
    same(by_engine(ray_engine(nodes.address), problem, problem.tasks()), columns)


@pytest.mark.long(guard="test_a_worker_that_is_killed_is_replaced_and_only_its_task_tried_again")
def test_ray_survives_the_loss_of_a_node(nodes: TwoNodes, tmp_path: Path) -> None:
    raylet = nodes.second.all_processes["raylet"][0].process.pid

    def lose() -> None:
        while not (there := list(tmp_path.glob(f"*-{raylet}"))):
            time.sleep(0.01)
        nodes.cluster.remove_node(nodes.second, allow_graceful=False)
        for path in there:  # on this machine, they outlive their node by a second
            os.kill(int(path.name.split("-")[1]), signal.SIGKILL)

    thread = threading.Thread(target=lose, daemon=True)
    thread.start()
    payload = {"folder": str(tmp_path), "lost": raylet}
    assert results(ray_engine(nodes.address), "stuck", payload, list(range(15))) == [-task for task in range(15)]
    thread.join(timeout=1)
    assert not thread.is_alive()
    assert len(list(tmp_path.iterdir())) == 16
