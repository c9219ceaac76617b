"""What measurements can set of a device and its host: interference, host bandwidths."""

from __future__ import annotations

from pathlib import Path

import pytest

from traincast import TraincastError, load_cluster
from traincast.cluster.hardware import HOST_BANDWIDTH, HOST_MEMORY_BANDWIDTH, INTERFERENCE

TEXT = """
extends = "dgx-h100"
[device]
extends = "h100-sxm5-80gb"
interference = {interference}
[node]
extends = "dgx-h100"
host_bandwidth = 60e9
host_memory_bandwidth = 500e9
"""


def test_a_file_sets_them_and_the_device_stays_the_same(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(TEXT.format(interference=0.2), encoding="utf-8")
    mine = load_cluster(str(path))
    assert (mine.device.interference, mine.host_bandwidth, mine.host_memory_bandwidth) == (0.2, 60e9, 500e9)
    assert mine.device.name == load_cluster("dgx-h100").device.name  # its measurements still hold


def test_where_nothing_is_said_the_usual_holds() -> None:
    plain = load_cluster("dgx-a100")
    assert plain.device.interference == INTERFERENCE < load_cluster("dgx-h100").device.interference
    assert (plain.host_bandwidth, plain.host_memory_bandwidth) == (HOST_BANDWIDTH, HOST_MEMORY_BANDWIDTH)


@pytest.mark.parametrize("wrong", ["-0.1", "nan", "'much'", "1e9"])
def test_nonsense_is_refused_in_one_line(wrong: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(TEXT.format(interference=wrong), encoding="utf-8")
    with pytest.raises(TraincastError, match="interference") as caught:
        load_cluster(str(path))
    assert "\n" not in str(caught.value)
