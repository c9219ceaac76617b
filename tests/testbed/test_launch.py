"""Processes of the testbed: what they are told, how they end, and what is left of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import pytest

from tests.testbed.conftest import comes_true, commands_with, namespaces_of, needs_shaping, on_linux
from traincast import TraincastError
from traincast.testbed.network import loopback, shaped
from traincast.testbed.rank.launch import launch

TELLS = "import json, os; print(json.dumps(dict(os.environ)))"


def python(code: str, *words: str) -> list[str]:
    return [sys.executable, "-c", code, *words]


def test_a_rank_is_told_how_to_find_the_others() -> None:
    with loopback(2) as network, tempfile.TemporaryFile() as out:
        launch([python(TELLS), python("")], network, environment={"RANK": "7", "COLOUR": "red"}, stdout=out)
        out.seek(0)
        told = json.load(out)
    assert {name: told[name] for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "GLOO_SOCKET_IFNAME", "COLOUR")} == {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        "COLOUR": "red",
    }
    assert 1024 < int(told["MASTER_PORT"]) < 65536


def test_the_first_rank_that_fails_gives_the_reason_and_ends_the_others() -> None:
    word = uuid.uuid4().hex
    fails = "import sys; print('long story', file=sys.stderr); sys.exit('the disk is full')"
    with loopback(2) as network, pytest.raises(TraincastError) as told:
        launch([python("import time; time.sleep(600)", word), python(fails)], network)
    assert str(told.value) == "rank 1 of 2 failed (exit code 1): the disk is full"
    assert commands_with(word) == []


@on_linux
def test_a_rank_that_lost_a_connection_is_not_taken_for_the_cause(tmp_path: Path) -> None:
    told, state = str(tmp_path / "rank1"), "open(f'/proc/{pid}/stat').read().split()[2]"
    fails = f"import os; open({told!r} + '-', 'w').write(str(os.getpid())); os.rename({told!r} + '-', {told!r})\n"
    fails += "os.write(2, b'out of memory'); os._exit(1)"
    follows = (
        f"import os, sys, time\nwhile not os.path.exists({told!r}): time.sleep(0.001)\npid = open({told!r}).read()\n"
    )
    follows += f"while {state} != 'Z': pass\nsys.exit('Connection closed by peer')"
    with loopback(2) as network, pytest.raises(TraincastError) as error:
        launch([python(follows), python(fails)], network)
    assert str(error.value) == "rank 1 of 2 failed (exit code 1): out of memory"


@on_linux
def test_a_rank_killed_by_a_signal_is_named_with_it() -> None:
    dies = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    with loopback(1) as network, pytest.raises(TraincastError) as told:
        launch([python(dies)], network)
    assert str(told.value) == "rank 0 of 1 failed (ended by SIGKILL): it wrote no message"


@on_linux
def test_a_run_that_takes_too_long_is_ended() -> None:
    word = uuid.uuid4().hex
    with loopback(2) as network, pytest.raises(TraincastError, match=r"ended after 1 s: rank 1 of 2 still ran"):
        launch([python(""), python("import time; time.sleep(600)", word)], network, timeout_s=1.0)
    assert commands_with(word) == []


@on_linux
def test_children_of_a_rank_end_with_it() -> None:
    word = uuid.uuid4().hex
    forks = (
        f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)', {word!r}])"
    )
    with loopback(1) as network:
        launch([python(forks)], network)
    assert comes_true(lambda: commands_with(word) == [])


@on_linux
def test_ranks_run_on_the_cores_asked_for() -> None:
    core = min(os.sched_getaffinity(0))
    with loopback(1) as network, tempfile.TemporaryFile() as out:
        launch([python("import os; print(os.sched_getaffinity(0))")], network, cores=[(core,)], stdout=out)
        out.seek(0)
        assert out.read().decode().strip() == f"{{{core}}}"


@pytest.mark.skipif(not hasattr(os, "SCHED_RR") or os.geteuid() != 0, reason="only root may run before others")
@pytest.mark.parametrize("urgent", [True, False])
def test_urgent_ranks_run_before_usual_processes(urgent: bool) -> None:
    with loopback(1) as network, tempfile.TemporaryFile() as out:
        launch([python("import os; print(os.sched_getscheduler(0))")], network, urgent=urgent, stdout=out)
        out.seek(0)
        assert (int(out.read()) == os.SCHED_RR) is urgent


OWNER = """
import signal, sys
from traincast.testbed.rank.launch import launch
from traincast.testbed.network import loopback, shaped
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
word = sys.argv[1]
sleeps = [sys.executable, "-c", "import time; time.sleep(600)", word]
forks = [sys.executable, "-c", f"import subprocess; subprocess.run({sleeps!r})", word]
with (shaped([1e7, 1e7]) if sys.argv[2] == "shaped" else loopback(2)) as network:
    print("ready", flush=True)
    launch([sleeps, forks], network)
"""


@on_linux
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM], ids=lambda end: end.name)
@pytest.mark.parametrize("kind", ["loopback", pytest.param("shaped", marks=needs_shaping)])
def test_nothing_is_left_after_the_owner_is_killed(end: signal.Signals, kind: str) -> None:
    word = uuid.uuid4().hex
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, word, kind], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"ready\n"
        assert comes_true(lambda: len(commands_with(word)) >= 4)  # the owner, two ranks, the child of a rank
        assert len(namespaces_of(owner.pid)) == (3 if kind == "shaped" else 0)
        owner.send_signal(end)
        owner.wait()
    assert comes_true(lambda: commands_with(word) == [])
    assert comes_true(lambda: namespaces_of(owner.pid) == [])
    assert comes_true(lambda: commands_with(str(owner.pid)) == [])  # the janitor, which was told the number


@needs_shaping
def test_ranks_may_share_a_node() -> None:
    tells = "import os, subprocess; print(os.environ['MASTER_ADDR'], os.stat('/proc/self/ns/net').st_ino, flush=True)"
    with shaped([1e7, 1e7]) as network, tempfile.TemporaryFile() as out:
        launch([python(tells), python("")], network, nodes=(1, 1), stdout=out)
        out.seek(0)
        address, inode = out.read().decode().split()
        assert network.nodes[1].namespace is not None
        assert (address, int(inode)) == (network.nodes[1].address, network.nodes[1].namespace.stat().st_ino)
