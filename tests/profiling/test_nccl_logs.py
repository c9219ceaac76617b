"""Logs of nccl-tests and rccl-tests: every way in which people have them in hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.profiling import nccl_samples as samples
from traincast import FileFormatError, RequestError
from traincast.profiling.collectives.nccl_logs import ImportedLogs, import_logs, likely_ranks

OURS = {"alltoall": "all_to_all", "sendrecv": "p2p"}


def read(folder: Path, lines: list[str] | str, *, name: str = "run.txt", **given: Any) -> ImportedLogs:
    path = folder / name
    path.write_text(lines if isinstance(lines, str) else "\n".join(lines) + "\n", encoding="utf-8")
    return import_logs([path], **given)


def check(found: ImportedLogs, *, sizes: tuple[int, ...] = samples.SIZES) -> None:
    """The rows follow the law of the samples."""
    assert [row["bytes"] for row in found.rows] == list(sizes)
    for row in found.rows:
        assert row["time_us"] == pytest.approx(samples.seconds(row["bytes"]) * 1e6, rel=1e-3)


@pytest.mark.parametrize("test", list(samples.FACTORS))
def test_the_columns_say_which_collective_ran(test: str, tmp_path: Path) -> None:
    found = read(tmp_path, samples.log(test))
    check(found)
    assert {row["collective"] for row in found.rows} == {OURS.get(test, test)}
    assert [entry["what"] for entry in found.assumed] == [f"collective {OURS.get(test, test)}, from its columns"]


def test_ranks_nodes_device_and_repeats_come_from_the_log(tmp_path: Path) -> None:
    row = read(tmp_path, samples.log(ranks=16, nodes=2)).rows[0]
    assert (row["n_ranks"], row["n_nodes"], row["ranks_per_node"]) == (16, 2, 8)
    assert row["device"] == "NVIDIA H100 80GB HBM3"
    assert (row["system"], row["n_meas"], row["variant"]) == ("node0", 20, "out-of-place")


def test_a_device_listed_twice_on_one_host_name_means_two_hosts(tmp_path: Path) -> None:
    lines = [line.replace("node1", "node0") for line in samples.log(ranks=8, nodes=2)]
    assert read(tmp_path, lines).rows[0]["n_nodes"] == 2


PREFIXES = (
    "0: ", " 3: ", "node1: ", "[1,0]<stdout>:", "(head, rank=0, pid=38) [1,0]<stdout>:", "2024-05-01T10:11:12.345Z ",
    "run(), common.cu:967, ", "> ", "\x1b[32m", "| ",
)  # fmt: skip


@pytest.mark.parametrize("prefix", PREFIXES)
def test_prefixes_of_launchers_do_not_matter(prefix: str, tmp_path: Path) -> None:
    found = read(tmp_path, [prefix + line for line in samples.log()])
    check(found)
    assert found.rows[0]["n_ranks"] == 16


@pytest.mark.parametrize("width", [132, 100, 90, 80, 72, 60])
def test_wrapped_lines_are_joined(width: int, tmp_path: Path) -> None:
    lines = [*samples.header(), *(samples.row("all_reduce", size, 16) for size in samples.SIZES)]
    check(read(tmp_path, samples.wrapped(lines, width), device="h100-sxm5-80gb"))


def test_a_message_of_the_library_may_interrupt_a_row(tmp_path: Path) -> None:
    lines = samples.log()
    where = next(i for i, line in enumerate(lines) if "1048576 " in line)
    cut = lines[where][:50]
    lines[where : where + 1] = [cut + "node0:21:33 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1]", lines[where][50:]]
    check(read(tmp_path, lines))


@pytest.mark.parametrize("missing", ["header", "devices", "both", "comments"])
def test_missing_headers_do_not_matter(missing: str, tmp_path: Path) -> None:
    rows = [samples.row("all_reduce", size, 16) for size in samples.SIZES]
    kept = {
        "header": [*samples.device_list(16, 2), *rows],
        "devices": [*samples.header(), *rows],
        "both": rows,
        "comments": [line.replace("#", " ", 1) for line in samples.log()],
    }[missing]
    found = read(tmp_path, kept, device="h100-sxm5-80gb")
    check(found)
    assert {(row["n_ranks"], row["n_nodes"]) for row in found.rows} == {(16, 2)}
    if missing in ("devices", "both"):
        assert [entry["what"] for entry in found.assumed][1:] == [
            "16 ranks, from the ratio of its bandwidths or of size and count",
            "2 nodes, with the 8 devices per node that are usual for h100-sxm5-80gb",
        ]


@pytest.mark.parametrize("separator", [" ", "\t", " | ", ",", ";"])
def test_cells_may_be_separated_by_anything(separator: str, tmp_path: Path) -> None:
    lines = [separator.join(line.lstrip("# ").split()) for line in samples.log()[-7:-2]]
    check(read(tmp_path, lines))


def test_a_web_page_is_read(tmp_path: Path) -> None:
    cells = ["<tr>\n" + "\n".join(f"  <td>{c}</td>" for c in line.split()) + "\n</tr>" for line in samples.log()[-7:-2]]
    check(read(tmp_path, "<html><table>\n" + "\n".join(cells) + "</table>", name="page.html"))
    text = "<pre>" + "<br/>".join(line.replace(" ", "&nbsp;") for line in samples.log()) + "</pre>"
    check(read(tmp_path, text, name="other.html"))


def test_utf16_and_windows_line_ends_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\r\n".join(samples.log()), encoding="utf-16")
    check(import_logs([tmp_path / "a.txt"]))


@pytest.mark.parametrize(
    ("test", "root", "redop"),
    [
        ("all_reduce", False, True),
        ("all_gather", False, False),
        ("broadcast", True, False),
        ("reduce_scatter", False, True),
    ],
)
def test_old_versions_without_redop_or_root_are_read(test: str, root: bool, redop: bool, tmp_path: Path) -> None:
    lines = [*samples.header(root=root, redop=redop)]
    lines += [samples.row(test, size, 8, root=root, redop=redop, wrong="2e-07") for size in samples.SIZES]
    found = read(tmp_path, lines, ranks=8)
    check(found)
    assert {(row["collective"], row["suspect"]) for row in found.rows} == {(test, False)}


def test_a_log_without_bandwidths_in_place_is_read(tmp_path: Path) -> None:
    rows = [samples.row("all_reduce", size, 4)[:-31].rstrip() for size in samples.SIZES]
    found = read(tmp_path, ["#   in-place", *rows], device="a100-sxm4-80gb")
    check(found)
    assert {row["variant"] for row in found.rows} == {"in-place"}


def test_columns_of_single_iterations_and_timestamps_are_passed_over(tmp_path: Path) -> None:
    extra = "    19.10    22.30    21.00     3.10"
    lines = [*samples.device_list(4, 1), "# out-of-place (+ per-iteration)  in-place (+ per-iteration)"]
    half = " time algbw busbw #wrong i_min i_max i_p99 i_cv%"
    lines += [f"# size count type redop root{half}{half} timestamp"]
    for size in samples.SIZES:
        line = samples.row("sendrecv", size, 4)
        half_way = len(line) - 32
        lines.append(line[:half_way] + extra + line[half_way:] + extra + " 2026-01-01 10:11:12")
    found = read(tmp_path, lines)
    check(found)
    assert {row["collective"] for row in found.rows} == {"p2p"}


def test_times_in_milliseconds_are_converted(tmp_path: Path) -> None:
    line = "  1073741824     268435456     float     sum      -1    10.76   99.81  187.15      0"
    head = [samples.header()[1], samples.header()[2].replace("(us)", "(ms)")]
    assert read(tmp_path, [*head, line], ranks=16).rows[0]["time_us"] == pytest.approx(10760)


def test_several_runs_in_one_file_stay_apart(tmp_path: Path) -> None:
    lines = ["mpirun -np 16 ./build/all_reduce_perf -b 1K", *samples.log("all_reduce", 16, 2)]
    lines += ["mpirun -np 8 ./build/sendrecv_perf -b 1K", *samples.log("sendrecv", 8, 1)]
    found = read(tmp_path, lines)
    assert [(row["collective"], row["n_ranks"]) for row in found.rows] == [("all_reduce", 16)] * 5 + [("p2p", 8)] * 5
    assert found.files[0]["runs"] == 2
    assert not found.assumed


@pytest.mark.parametrize(
    ("line", "library"),
    [
        ("NCCL version 2.23.4+cuda12.6", "NCCL 2.23.4"),
        ("# nccl-tests version 2.17.1 nccl-headers=22703 nccl-library=22805", "NCCL 2.28.5"),
        ("RCCL version 2.18.3+hip5.7 HEAD:1234", "RCCL 2.18.3"),
        ("rccl-tests: Version develop:ae3e635", "RCCL"),
        ("nothing", "NCCL"),
    ],
)
def test_the_library_is_the_one_that_the_log_names(line: str, library: str, tmp_path: Path) -> None:
    assert read(tmp_path, [line, *samples.log()]).rows[0]["library"] == library


@pytest.mark.parametrize(
    ("said", "interconnect"),
    [
        (["NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_2:1/RoCE [RO]; OOB eth0:10.0.0.1<0>"], "2x RoCE"),
        (["NET/IB : Made virtual device [0] name=mlx5_0 speed=400000", "NET/IB : Using [0]mlx5_0:1/IB"],
         "1x400G InfiniBand"),
        (["NET/OFI Selected Provider is efa (found 4 nics)"], "EFA"),
        (["NET/Socket : Using [0]eth0:10.0.0.1<0>"], "Ethernet TCP sockets"),
        ([], ""),
    ],
)  # fmt: skip
def test_the_network_is_the_one_that_the_library_uses(said: list[str], interconnect: str, tmp_path: Path) -> None:
    lines = [f"node0:21:33 [0] NCCL INFO {line}" for line in said]
    assert read(tmp_path, [*lines, *samples.log()]).rows[0]["interconnect"] == interconnect
    assert read(tmp_path, [*lines, *samples.log(nodes=1)]).rows[0]["interconnect"] == ""


def test_wrong_results_make_a_row_suspect(tmp_path: Path) -> None:
    lines = [*samples.log()[:-7], samples.row("all_reduce", 1048576, 16, wrong="7")]
    assert [row["suspect"] for row in read(tmp_path, lines).rows] == [True]


def test_rows_that_cannot_be_are_left_out_and_counted(tmp_path: Path) -> None:
    lines = samples.log()
    lines.insert(-2, "           0             0     float     sum      -1     6.36    0.00    0.00      0")
    lines.insert(-2, "  2147483648     536870912     float     sum      -1     6.36    0.50    0.93      0")
    lines.insert(-2, "  2147483648     536870912     float     sum      -1     7.36    0.50    0.93      0")
    found = read(tmp_path, lines)
    check(found)
    assert [(entry["reason"], entry["count"]) for entry in found.skipped] == [
        ("size 0: no data was moved", 1),
        ("time and bandwidth of the row disagree", 2),
    ]
    first = lines.index("  2147483648     536870912     float     sum      -1     6.36    0.50    0.93      0") + 1
    assert found.skipped[1]["lines"] == [first, first + 1]


def test_the_table_of_a_bandwidth_benchmark_is_read(tmp_path: Path) -> None:
    lines = ["| payload |    busbw   |    algbw   |", "| ------: | ---------: | ---------: |"]
    lines += ["|   64KiB |   2.93GBps |   1.67GBps |", "|    1GiB | 463.58GBps | 264.90GBps |"]
    found = read(tmp_path, lines, device="h200-sxm-141gb")
    assert [(row["bytes"], row["n_ranks"], row["stat"]) for row in found.rows] == [
        (65536, 8, "derived time"),
        (2**30, 8, "derived time"),
    ]
    assert found.rows[1]["time_us"] == pytest.approx(2**30 / 264.90e3)


def test_the_name_of_the_file_is_the_last_resort(tmp_path: Path) -> None:
    rows = [samples.row("alltoall", size, 8)[:-4] + "  0" for size in samples.SIZES]
    rows = [line.rpartition(" ")[0].rstrip()[:-32] + " N/A" for line in rows]
    found = read(tmp_path, rows, name="007_dgxa100-1n_alltoall.txt")
    assert {(row["collective"], row["n_nodes"], row["device"]) for row in found.rows} == {
        ("all_to_all", 1, "a100-sxm4-80gb")
    }
    said = [entry["what"] for entry in found.assumed]
    assert "collective all_to_all, from the name of the file" in said
    assert "1 nodes, from the name of the file" in said


def test_an_incomplete_list_of_ranks_counts_if_the_bandwidths_agree(tmp_path: Path) -> None:
    rows = [samples.row("all_reduce", size, 1440) for size in samples.SIZES]
    last = "#  Rank {} Group  0 Pid  21082 on slurm-73 device  3 [0x01] NVIDIA GB200"
    found = read(tmp_path, [last.format(1439), *rows])
    assert {(row["n_ranks"], row["device"]) for row in found.rows} == {(1440, "NVIDIA GB200")}
    assert found.assumed[1]["what"] == "1440 ranks, with rank 1439 as the last one of an incomplete list"
    assert {row["n_ranks"] for row in read(tmp_path, [last.format(63), *rows]).rows} != {64}


def test_transfers_between_unstated_ranks_get_one_usual_node(tmp_path: Path) -> None:
    rows = [samples.row("sendrecv", size, 8) for size in samples.SIZES]
    found = read(tmp_path, [*samples.header(), *rows], device="a100-sxm4-80gb")
    assert {(row["collective"], row["n_ranks"], row["n_nodes"]) for row in found.rows} == {("p2p", 8, 1)}
    assert found.assumed[1]["what"] == "8 ranks, one node of the 8 devices that are usual for a100-sxm4-80gb"


def test_unknown_ranks_are_asked_for(tmp_path: Path) -> None:
    line = "     8        2     float     sum      -1    20.00    0.00    0.00      0"
    with pytest.raises(FileFormatError, match="the number of ranks is not stated: give --ranks"):
        read(tmp_path, [line])
    assert read(tmp_path, [line], ranks=4).rows[0]["n_ranks"] == 4


def test_a_file_without_rows_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(
        FileFormatError, match=r"run.txt has no row of nccl-tests or rccl-tests: no line looks like one"
    ):
        read(tmp_path, ["hello", "world 1 2 3"])
    with pytest.raises(FileFormatError, match="is not text"):
        (tmp_path / "b.txt").write_bytes(b"\x00\x01\x02")
        import_logs([tmp_path / "b.txt"])
    with pytest.raises(FileFormatError, match="cannot read"):
        import_logs([tmp_path / "missing.txt"])
    with pytest.raises(RequestError, match="has no logs"):
        (tmp_path / "empty").mkdir()
        import_logs([tmp_path / "empty"])


def test_more_nodes_than_ranks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"--nodes 32: .* has only 16 ranks"):
        read(tmp_path, samples.log(), nodes=32)


@pytest.mark.parametrize("ranks", [2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 72, 96, 128, 144, 256, 512, 1024])
def test_the_ratio_of_the_bandwidths_gives_the_ranks(ranks: int, tmp_path: Path) -> None:
    lines = [samples.row("all_reduce", size, ranks) for size in samples.SIZES]
    found = read(tmp_path, lines, nodes=1)
    assert {row["n_ranks"] for row in found.rows} == {ranks}


@pytest.mark.parametrize(
    ("least", "most", "expected"), [(125, 131, 128), (5, 5, 5), (70, 75, 72), (1200, 1500, 1024 + 256), (13, 13, 13)]
)
def test_the_roundest_number_is_chosen(least: int, most: int, expected: int) -> None:
    assert likely_ranks(least, most) == expected
