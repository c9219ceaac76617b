"""Networks of the testbed: what is made, what is refused, and what is left."""

from __future__ import annotations

import os
import subprocess
import sys
from statistics import median

import pytest

from tests.testbed import goodput
from tests.testbed.conftest import namespaces_of, needs_shaping
from tests.testbed.goodput import measure_messages
from traincast import RequestError
from traincast.processes import enter, janitor
from traincast.processes.janitor import NAMESPACES, sweep
from traincast.testbed.network import loopback, shaped


def shown(*words: str) -> str:
    """What ``ip`` or ``tc`` tells."""
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def test_loopback_says_what_it_is_not() -> None:
    with loopback(3) as network:
        assert [node.address for node in network.nodes] == ["127.0.0.1"] * 3
        assert not network.is_shaped
        assert network.warnings[0].startswith("all ranks share the loopback interface")


def test_a_rate_without_root_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("shutil.which", lambda *_, **__: "/sbin/ip")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(RequestError) as told, shaped([1e7]):
        pass
    assert str(told.value) == (
        "links with a rate were asked for: only root may shape links: run the command with sudo, or use the loopback "
        "network without a rate"
    )
    with loopback(1) as network:
        assert network.warnings[0].endswith("(only root may shape links: run the command with sudo)")


def test_missing_tools_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("shutil.which", lambda name, **_: None if name == "tc" else name)
    with pytest.raises(RequestError, match="shaped with tc, which are missing: install iproute2"), shaped([1e7]):
        pass


@needs_shaping
@pytest.mark.parametrize(("rate", "said"), [(1e9, "8000 Mbit/s"), (1e4, "0.08 Mbit/s"), (float("nan"), "nan Mbit/s")])
def test_a_rate_that_cannot_be_shaped_is_refused(rate: float, said: str) -> None:
    with (
        pytest.raises(RequestError, match=f"a link of {said} cannot be shaped here: expected 1 Mbit/s"),
        shaped([rate]),
    ):
        pass
    assert namespaces_of(os.getpid()) == []


@needs_shaping
def test_both_ends_of_every_link_have_its_rate() -> None:
    rates = [12.5e6, 2e6, 5e6]
    with shaped(rates) as network:
        hub = next(name for name in namespaces_of(os.getpid()) if name.endswith("hub"))
        for number, (rate, node) in enumerate(zip(rates, network.nodes, strict=True)):
            assert node.namespace is not None
            assert node.rate == rate
            told = shown("ip", "-n", node.namespace.name, "-4", "-brief", "address", "show", "dev", node.interface)
            assert told.split()[-1] == f"{node.address}/24"
            for place, device in ((node.namespace.name, node.interface), (hub, f"port{number}")):
                lines = shown("tc", "-n", place, "class", "show", "dev", device).splitlines()
                (whole,) = (line.split() for line in lines if " root " in line)
                assert whole[whole.index("rate") + 1] == f"{rate * 8e-3 * 1514 / 1448:.0f}Kbit"
                assert len(lines) == 4  # the link, acknowledgements, and the two other nodes
    assert namespaces_of(os.getpid()) == []


@needs_shaping
def test_a_message_takes_as_long_as_the_slower_link_needs() -> None:
    with shaped([1e6, 20e6]) as network:
        seconds = measure_messages(network, [300_000], repeats=3, sender=1, receiver=0)
    assert min(seconds[300_000]) > 0.28  # a burst passes at once; a busy machine takes longer, never less
    assert len(seconds[300_000]) == 3


@needs_shaping
def test_two_networks_at_once_do_not_collide() -> None:
    with shaped([5e6, 5e6]) as one, shaped([10e6, 10e6]) as other:
        assert len(namespaces_of(os.getpid())) == 6
        slow = measure_messages(one, [200_000], repeats=3)
        fast = measure_messages(other, [200_000], repeats=3)
        assert min(slow[200_000]) > 0.036
        assert min(fast[200_000]) > 0.017
    assert namespaces_of(os.getpid()) == []


@needs_shaping
def test_a_sweep_removes_what_the_dead_left_and_nothing_else() -> None:
    gone = f"traincast-{os.getpid()}-1-0-n0"  # this process started later than at tick 1
    subprocess.run(["ip", "netns", "add", gone], check=True)
    with shaped([1e7]) as network:  # it sweeps first
        assert not (NAMESPACES / gone).exists()
        assert sweep() == []
        assert network.nodes[0].namespace is not None
        assert network.nodes[0].namespace.exists()


@needs_shaping
def test_the_goodput_of_loopback_and_of_a_link_differ() -> None:
    with loopback(2) as near, shaped([1e6, 1e6]) as far:
        size = 100_000
        assert median(measure_messages(near, [size])[size]) < median(measure_messages(far, [size])[size])


def test_the_programs_of_the_testbed_need_only_the_standard_library() -> None:
    for module in (janitor, enter, goodput):
        path = str(module.__file__)
        code = f"import runpy, sys; runpy.run_path({path!r}); sys.exit('traincast' in sys.modules)"
        subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)
