"""Every option of every verb refuses what it cannot mean: exit code 2, one line that names it, nothing left behind.

Cases are products of a command, one of its options, and values that are wrong for options of that kind.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from traincast.cli.main import main

ROOT = Path(__file__).parents[2]
GPT = "gpt:layers=2,hidden=64,heads=4,vocab=100,seq=32"

PREDICT = ["predict", GPT, "--cluster", "dgx-h100", "--global-batch", "8"]
SEARCH = ["search", GPT, "--cluster", "dgx-h100", "--global-batch", "8", "--workers", "1"]
SCHEDULE = ["schedule", "jobs.csv", "--nodes", "2x8"]
CAPTURE = ["capture", GPT, "-o", "graph.json"]
FIT = ["fit", "operators", "jobs.csv", "-o", "bundle"]
FIT_COLLECTIVES = ["fit", "collectives", "jobs.csv", "-o", "bundle"]
PROFILE = ["profile", "operators", "--from", GPT, "-o", "table.parquet"]
PROFILE_COLLECTIVES = ["profile", "collectives", "--local", "2", "-o", "table.parquet"]
OPSET = ["profile", "opset", "--layers-per-type", "1"]
CALIBRATE = ["calibrate", "jobs.csv", "--cluster", "dgx-h100", "-o", "mine.toml"]

COUNT = ("", "0", "-1", "1.5", "nan", "inf", "1e400", "many", "٣", "1,000", "0x10", "1e30")
"""No count: none, nothing, negative, a part, no number, a digit of another script, beyond reason."""
WHOLE = ("", "0", "-1", "1.5", "nan", "many", "99999999999999999999999")
SEED = ("", "-1", "1.5", "nan", "many", "٣", "2147483648")
NAME = ("", "nonsense", "../..", "\N{SNOWMAN}", "a" * 300)
TIME = ("", "-1h", "nan", "soon", "5 fortnights", "1e999s", "h")
FOLDERLESS = ("no/such/folder/file",)

VALUES: list[tuple[list[str], str, tuple[str, ...]]] = [
    # command, option, what it refuses
    (PREDICT, "--global-batch", COUNT),
    (PREDICT, "--seq", COUNT),
    (PREDICT, "--tokens", COUNT),
    (PREDICT, "--samples", COUNT),
    (PREDICT, "--steps", COUNT),
    (PREDICT, "--seed", SEED),
    (PREDICT, "--precision", NAME),
    (PREDICT, "--runtime", (*NAME, ".toml", "folder.toml")),
    (
        PREDICT,
        "--cluster",
        (
            *NAME,
            "dgx-h100:",
            "dgx-h100:1x0",
            "dgx-h100:1x9",
            "dgx-h100:0x8",
            "dgx-h100:1.5",
            ":4",
            "dgx-h100:1x",
            "dgx-h100:-1x8",
            "dgx-h100+",
            "+",
            "folder.toml",
            ".toml",
        ),
    ),
    (
        PREDICT,
        "--strategy",
        (
            "=",
            "dp",
            "dp=",
            "dp=8=8",
            "dp=1.5",
            "dp=nan",
            "dp=-8",
            "dp=99999999999",
            "DP=8;",
            "micro_batch=0",
            "dp=8,micro_batch=-1",
            "dp=8,micro_batch=99999999999999999999",
            "dp=8,num_microbatches=0",
            "dp=8,zero=-1",
            "pp=2,dp=4,vp=0",
            "dp=8,recompute=",
            "dp=8,recompute_every=0",
            "dp=8,context=",
            "dp=8,offload=",
            "dp=8,servers=-1",
            "dp=8,imbalance=0",
            "dp=8,imbalance=inf",
            "dp=8,capacity=-1",
            "dp=8,prefetch=-9",
            "dp=8,layers=",
            "dp=4,pp=2,layers=0/2",
            "dp=4,pp=2,layers=-1/3",
            "dp=4,pp=2,schedule=",
            "dp=4,pp=2,schedule=:",
            "dp=4,pp=2,schedule=os:",
            "\N{SNOWMAN}=1",
            "dp=4,pp=2,schedule=os:getcwd",
            "dp=4,pp=2,schedule=string:digits",
        ),
    ),
    (PREDICT, "--shard-rule", ("", "=", "=column", "*=", "*=diagonal")),
    (PREDICT, "--bundle", ("", "missing", "jobs.csv", "folder.toml")),
    (PREDICT, "--html", (*FOLDERLESS, "folder.toml")),
    (PREDICT, "--trace", FOLDERLESS),
    (SEARCH, "--global-batch", COUNT),
    (SEARCH, "--seq", COUNT),
    (SEARCH, "--top", COUNT),
    (SEARCH, "--tokens", COUNT),
    (SEARCH, "--workers", (*COUNT, "1025")),
    (SEARCH, "--seed", SEED),
    (SEARCH, "--deadline", ("14", "0s", *TIME)),
    (SEARCH, "--budget", ("", "-5", "nan", "inf", "much")),
    (SEARCH, "--objective", NAME),
    (SEARCH, "--searcher", NAME),
    (SEARCH, "--engine", NAME),
    (SEARCH, "--export", NAME),
    (SEARCH, "--precision", NAME),
    (SEARCH, "--runtime", NAME),
    (SEARCH, "--nodes", ("", "0", "-1", "4..1", "1..", "..4", "a..b", "1.5", "1..99999999999")),
    (SEARCH, "--devices", ("", ",", "nonsense", "h100,nonsense", "\N{SNOWMAN}")),
    (
        SEARCH,
        "--constraint",
        (
            "=",
            "tp",
            "tp<=",
            "tp<=x",
            "tp=0",
            "tp=-1",
            "colour=red",
            "memory<=",
            "memory<=-1GB",
            "memory<=nan",
            "zero=9",
            "schedule=zigzag",
            "tp<=8;dp=1",
            "tp==",
            "recompute=maybe",
        ),
    ),
    (SEARCH, "--all-out", (*FOLDERLESS, "candidates.txt")),
    (SEARCH, "--html", (*FOLDERLESS, "folder.toml")),
    (SEARCH, "--resume", ("jobs.csv",)),
    (SEARCH, "--bundle", ("missing", "jobs.csv")),
    (SCHEDULE, "--nodes", ("", "0", "-1", "1.5", "many", "2x0", "0x8", "2x8:", "x8", "2x", "2x8+", "99999999999")),
    (SCHEDULE, "--gpus-per-node", ("", "0", "-1", "1.5", "many")),
    (SCHEDULE, "--cluster-file", ("", "missing.csv", "folder.toml", "jobs.csv")),
    (SCHEDULE, "--nodes-per-rack", ("", "-1", "1.5", "many")),
    (SCHEDULE, "--quota", ("", "vc", "vc=", "=4", "vc=-1", "vc=many", "vc=nan")),
    (SCHEDULE, "--policy", (*NAME, "os:getcwd", "os:", ":x", "nowhere:Policy")),
    (SCHEDULE, "--placement", (*NAME, "os:getcwd", "nowhere:Placement")),
    (SCHEDULE, "--compare", ("", ",", "fifo,nonsense", "\N{SNOWMAN}")),
    (SCHEDULE, "--estimates", ("", "nonsense", "noisy:", "noisy:-1", "noisy:nan", "noisy:x", "exact,")),
    (SCHEDULE, "--format", NAME),
    (SCHEDULE, "--oversize", ("", "keep")),
    (SCHEDULE, "--load", ("", "0", "-1", "nan", "inf", "fast", "1,x")),
    (SCHEDULE, "--mtbf", ("", "30d", "node=", "node=-1d", "node=soon", "planet=3d", "node=nan")),
    (SCHEDULE, "--checkpoint-interval", (*TIME, "0")),
    (SCHEDULE, "--checkpoint-cost", ("", "-1s", "soon", "1s+", "1s+x/gpu", "1s/device", "nan")),
    (SCHEDULE, "--restore-cost", ("", "-1s", "soon", "1s+")),
    (SCHEDULE, "--restart-cost", ("", "-1s", "soon")),
    (SCHEDULE, "--failure-events", ("", "missing.csv", "folder.toml", "jobs.csv")),
    (SCHEDULE, "--seed", SEED),
    (SCHEDULE, "--seeds", ("", "0", "-1", "1001", "1.5", "many")),
    (SCHEDULE, "--workers", (*COUNT, "1025")),
    (SCHEDULE, "--engine", ("", "nonsense")),
    (SCHEDULE, "--jobs-out", FOLDERLESS),
    (SCHEDULE, "--html", (*FOLDERLESS, "folder.toml")),
    (SCHEDULE, "--hardware", ("", "V100", "V100=", "=v100", "V100=nonsense")),
    (CAPTURE, "--seq", COUNT),
    (CAPTURE, "-o", (*FOLDERLESS, "", "folder.toml")),
    (FIT, "--epochs", WHOLE),
    (FIT, "--workers", (*COUNT, "1025")),
    (FIT, "--seed", SEED),
    (FIT, "--where", ("", "device", "device=", "=x", "colour=red")),
    (FIT_COLLECTIVES, "--seed", SEED),
    (PROFILE, "--batch", COUNT),
    (PROFILE, "--seq", COUNT),
    (PROFILE, "--precision", NAME),
    (PROFILE, "--device", NAME),
    (PROFILE, "--threads", WHOLE),
    (PROFILE, "--repeats", WHOLE),
    (PROFILE, "--timed-steps", WHOLE),
    (PROFILE, "--limit", WHOLE),
    (PROFILE, "--layers-per-type", WHOLE),
    (PROFILE, "--time-limit", ("0", "0s", *TIME)),
    (PROFILE, "--from", ("", ",", "nonsense", "missing.json", "\N{SNOWMAN}")),
    (PROFILE, "-o", ("", "table.txt", "no/such/folder/table.parquet", "folder.toml", "jobs.csv")),
    (PROFILE_COLLECTIVES, "--ops", ("", ",", "nonsense", "all_reduce,nonsense")),
    (PROFILE_COLLECTIVES, "--sizes", ("", "0", "-1", "nan", "many")),
    (PROFILE_COLLECTIVES, "--groups", ("", "0", "1", "-1", "nan", "many", "99")),
    (PROFILE_COLLECTIVES, "--backend", NAME),
    (PROFILE_COLLECTIVES, "--repeats", WHOLE),
    (PROFILE_COLLECTIVES, "--threads", WHOLE),
    (PROFILE_COLLECTIVES, "--local", WHOLE),
    (PROFILE_COLLECTIVES, "--time-limit", ("0", "0s", *TIME)),
    (PROFILE_COLLECTIVES, "-o", ("", "table.txt", "no/such/folder/table.parquet", "folder.toml")),
    (OPSET, "--layers-per-type", WHOLE),
    (OPSET, "--batch", COUNT),
    (OPSET, "--seed", SEED),
    (OPSET, "-o", FOLDERLESS),
    (CALIBRATE, "--cluster", NAME),
    (CALIBRATE, "--curve", ("", "x", "-1", "1.5", "nan", ",")),
    (CALIBRATE, "-o", ("", "mine.txt", "no/such/folder/mine.toml", "folder.toml")),
]

WORDS: list[tuple[list[str], tuple[str, ...]]] = [
    # a command, and what it refuses as its argument
    (
        ["predict", "--cluster", "dgx-h100", "--global-batch", "8"],
        (
            *NAME,
            ":",
            "gpt:",
            "gpt:=",
            "gpt:layers=",
            "gpt:layers",
            "gpt:layers=2,layers=2",
            "missing.json",
            "folder.toml",
            "jobs.csv",
            ".json",
            "json:",
            ":factory",
            "no.such:factory",
            "string:digits",
            "os:getcwd",
            "math:sqrt",
            "gpt:layers=nan,hidden=64,heads=4",
            "gpt:layers=2,hidden=64,heads=0",
            "gpt:layers=2,hidden=inf,heads=4",
            "gpt:layers=2,hidden=64,heads=4,vocab=0",
            "gpt:layers=2,hidden=64,heads=4,vocab=-5",
            "llama:layers=2,hidden=64,heads=4,kv_heads=3",
            "moe:layers=2,hidden=64,heads=4,experts=4,top_k=9",
            "resnet:layers=51",
            "vit:layers=2,hidden=64,heads=4,patch=0",
        ),
    ),
    (["search", "--cluster", "dgx-h100", "--global-batch", "8"], (*NAME, "missing.json")),
    (["capture", "-o", "graph.json"], (*NAME, "missing.json")),
    (["models"], NAME),
    (["clusters"], (*NAME, "dgx-h100:0", "missing.toml", "folder.toml")),
    (["devices"], (*NAME, "missing.toml", "folder.toml", "tpu")),
    (["runtimes"], (*NAME, "missing.toml", "folder.toml")),
    (["schedule", "--nodes", "2x8"], ("", "missing.csv", "folder.toml")),
    (["validate", "steps"], ("", "missing.csv", "folder.toml", "jobs.csv", "jobs.txt")),
    (["validate", "dp-steps"], ("", "missing.csv", "folder.toml", "jobs.csv", "jobs.txt")),
    (["validate", "operators"], ("", "missing.csv", "folder.toml", "jobs.csv", "jobs.txt")),
    (["validate", "collectives"], ("", "missing.csv", "folder.toml", "jobs.csv", "jobs.txt")),
    (["calibrate", "--cluster", "dgx-h100", "-o", "mine.toml"], ("", "missing.csv", "folder.toml", "jobs.csv")),
    (["fit", "operators", "-o", "bundle"], ("", "missing.csv", "folder.toml", "jobs.csv", "jobs.txt")),
    (["fit", "collectives", "-o", "bundle"], ("", "missing.csv", "folder.toml", "jobs.csv", "jobs.txt")),
]


def _cases() -> Iterator[tuple[str, list[str]]]:
    for command, option, values in VALUES:
        verb = " ".join(word for word in command[:2] if word.isalpha())
        for value in values:
            yield f"{verb} {option} {value[:40]!r}", [*command, option, value]
    for command, words in WORDS:
        verb = " ".join(word for word in command[:2] if "-" not in word[:1])
        for word in words:
            yield f"{verb} {word[:40]!r}", [*command, "--", word]


CASES = dict(_cases())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table of jobs, a text of them, and a folder that is called like a file."""
    made = tmp_path_factory.mktemp("bad-values")
    shutil.copy(ROOT / "examples" / "jobs.csv", made / "jobs.csv")
    shutil.copy(ROOT / "examples" / "jobs.csv", made / "jobs.txt")
    (made / "folder.toml").mkdir()
    return made


@pytest.mark.parametrize("what", CASES)
def test_a_wrong_value_gets_one_line_and_exit_code_two(
    what: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    before = sorted(folder.rglob("*"))
    with pytest.raises(SystemExit) as stopped:
        main(CASES[what])
    shown = capsys.readouterr()
    assert stopped.value.code == 2, shown.err
    assert shown.out == ""
    (line,) = shown.err.splitlines()
    assert line.startswith("traincast: ")
    assert len(line) < 600
    assert sorted(folder.rglob("*")) == before


def test_there_are_enough_of_them() -> None:
    assert len(CASES) >= 300
