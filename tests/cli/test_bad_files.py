"""Every kind of file that is damaged, or of another kind, is refused: exit code 2, one line, and the file as it was."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from traincast.cli.main import main

GPT = "gpt:layers=2,hidden=64,heads=4,vocab=100,seq=32"
PREDICT = ["predict", GPT, "--global-batch", "8"]

TEXTS: dict[str, bytes] = {
    # what no reader of any kind can read
    "empty": b"",
    "blank": b" \n\n",
    "zeros": b"\0" * 64,
    "not UTF-8": b"\xff\xfe\xfa\x80 nonsense",
    "an image": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
    "a page": b"<!doctype html><html><body>404</body></html>",
    "a list": b"[1, 2, 3]",
    "cut short": b'{"format": "traincast-graph", "version": 1, "oper',
}

READERS: dict[str, tuple[str, list[str]]] = {
    # who reads it: name of the file, command
    "cluster": ("bad.toml", [*PREDICT, "--cluster", "bad.toml"]),
    "runtime": ("bad.toml", [*PREDICT, "--cluster", "dgx-h100", "--runtime", "bad.toml"]),
    "device": ("bad.toml", ["devices", "bad.toml"]),
    "model": ("bad.json", ["predict", "bad.json", "--cluster", "dgx-h100", "--global-batch", "8"]),
    "model to capture": ("bad.json", ["capture", "bad.json", "-o", "graph.json"]),
    "trace": ("bad.csv", ["schedule", "bad.csv", "--nodes", "2x8"]),
    "nodes": ("bad.csv", ["schedule", "bad.csv", "--cluster-file", "bad.csv"]),
    "steps": ("bad.csv", ["validate", "steps", "bad.csv"]),
    "steps in Parquet": ("bad.parquet", ["validate", "steps", "bad.parquet"]),
    "dp-steps": ("bad.csv", ["validate", "dp-steps", "bad.csv"]),
    "operators": ("bad.parquet", ["validate", "operators", "bad.parquet"]),
    "operators to fit": ("bad.parquet", ["fit", "operators", "bad.parquet", "-o", "bundle"]),
    "collectives": ("bad.csv", ["validate", "collectives", "bad.csv"]),
    "collectives to fit": ("bad.csv", ["fit", "collectives", "bad.csv", "-o", "bundle"]),
    "runs to calibrate with": ("bad.csv", ["calibrate", "bad.csv", "--cluster", "dgx-h100", "-o", "mine.toml"]),
    "operator set": ("bad.json", ["profile", "operators", "--from", "bad.json", "-o", "table.parquet"]),
    "bundle": ("bundle/card.json", [*PREDICT, "--cluster", "dgx-h100", "--bundle", "bundle"]),
}
JOURNALS = [b"nonsense", b"nonsense\n", b"{}\n", b"[1, 2]\n", b'{"format": "other"}\n', b"\xff\xfe\n"]
"""What is no journal; a last line that was cut short is one that was being written, and is left out."""
PROFILE = ["profile", "operators", "--from", GPT, "--alone", "--limit", "1", "-o", "table.parquet"]

CLUSTER = 'extends = "dgx-h100"\n'
RUNTIME = ""
JOBS = "job_id,submit_s,num_gpus,duration_s\n"
STEPS = "source,model,gpu,n_gpus,step_time_s\n"
CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 100,
    "max_position_embeddings": 32,
}

SAYINGS: dict[str, list[str]] = {
    # files of the right kind that say something that cannot be
    "cluster": [
        CLUSTER + "[node]\ndevices_per_node = 0\n",
        CLUSTER + "[node]\ndevices_per_node = 1.5\n",
        CLUSTER + '[node]\ndevices_per_node = "eight"\n',
        CLUSTER + "[node]\nlaunch_s = inf\n",
        CLUSTER + "[node]\nlaunch_s = -1e-6\n",
        CLUSTER + "[node]\nnics_per_node = -1\n",
        CLUSTER + '[node]\ndevice = "tpu"\n',
        CLUSTER + "[node]\ndevice = 5\n",
        CLUSTER + "[cluster]\nnum_nodes = 0\n",
        CLUSTER + "[cluster]\ncolour = 1\n",
        CLUSTER + "[colour]\nx = 1\n",
        CLUSTER + "node = 3\n",
        'extends = "bad.toml"\n',
        "extends = 3\n",
        'extends = ""\n',
        CLUSTER + "[device]\nmemory_bytes = 0\n",
        CLUSTER + "[device]\nmemory_bandwidth = nan\n",
        CLUSTER + "[device]\ncolour = 1\n",
        "[node]\n",
        "[node]\n[node]\n",
    ],
    "runtime": [
        "[exchange]\nbucket_bytes = -1\n",
        "[exchange]\nbucket_bytes = true\n",
        "[exchange]\noverlap_gradients = 3\n",
        "[launches]\noperator = inf\n",
        "[launches]\noperator = -1\n",
        '[kernels]\nfusions = "all"\n',
        "[kernels]\nfusions = [3]\n",
        'extends = "nonsense"\n',
        '[defaults]\nstage_cut = "diagonal"\n',
        "[memory]\nallocator_overhead = nan\n",
    ],
    "model": [
        json.dumps({**CONFIG, "hidden_size": 0}),
        json.dumps({**CONFIG, "hidden_size": -64}),
        json.dumps({**CONFIG, "hidden_size": 64.5}),
        json.dumps({**CONFIG, "hidden_size": "wide"}),
        json.dumps({**CONFIG, "hidden_size": None}),
        json.dumps({**CONFIG, "hidden_size": 10**30}),
        json.dumps({**CONFIG, "num_hidden_layers": 0}),
        json.dumps({**CONFIG, "num_attention_heads": 0}),
        json.dumps({**CONFIG, "num_attention_heads": 5}),
        json.dumps({**CONFIG, "num_key_value_heads": 3}),
        json.dumps({**CONFIG, "vocab_size": 0}),
        json.dumps({**CONFIG, "vocab_size": [100]}),
        json.dumps({**CONFIG, "model_type": 7}),
        json.dumps({**CONFIG, "model_type": ""}),
        json.dumps({"hidden_size": 64}),
        '{"model_type": "llama", "hidden_size": Infinity}',
        "null",
        '"text"',
        "7",
    ],
    "trace": [
        JOBS,
        JOBS + "a,0,8\n",
        JOBS + "a,0,0,100\n",
        JOBS + "a,0,-1,100\n",
        JOBS + "a,0,nan,100\n",
        JOBS + "a,0,many,100\n",
        JOBS + "a,-1,8,100\n",
        JOBS + "a,soon,8,100\n",
        JOBS + "a,0,8,0\n",
        JOBS + "a,0,8,-5\n",
        JOBS + "a,0,8,inf\n",
        JOBS + "a,0,8,\n",
        JOBS + "a,0,8,100\na,0,8,100\n",
        JOBS + "a,0,999,100\n",
        "job_id,submit_s,num_gpus\na,0,8\n",
    ],
    "nodes": [
        "node,gpu_type,gpus\n",
        "node,gpu_type,gpus\na,V100,0\n",
        "node,gpu_type,gpus\na,V100,many\n",
        "node,gpu_type,gpus\na,V100,-1\n",
        "node,gpus\na,8\na,8\n",
        "colour\nred\n",
    ],
    "steps": ["a,b\n1,2\n", "model\nllama3-8b\n"],
    "runs to calibrate with": [STEPS, "a,b\n1,2\n"],
    "collectives": ["a,b\n1,2\n"],
    "collectives to fit": ["a,b\n1,2\n"],
    "operator set": ["{}", '{"format": "traincast-graph"}', '{"format": "traincast-opset", "version": 99}', "[]"],
}


def _cases() -> Iterator[tuple[str, tuple[str, bytes, list[str]]]]:
    for who, (name, command) in READERS.items():
        for what, content in TEXTS.items():
            yield f"{who}: {what}", (name, content, command)
        for number, text in enumerate(SAYINGS.get(who, [])):
            yield f"{who}: {number} {text[-30:]!r}", (name, text.encode(), command)
    for content in JOURNALS:
        yield f"journal: {content!r}", ("table.parquet.journal", content, PROFILE)


CASES = dict(_cases())
FINE = {"runtime: empty", "runtime: blank"}
"""A runtime that says nothing has the usual habits."""


@pytest.mark.parametrize("what", [what for what in CASES if what not in FINE])
def test_a_bad_file_gets_one_line_and_exit_code_two(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name, content, command = CASES[what]
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SystemExit) as stopped:
        main(command)
    shown = capsys.readouterr()
    assert stopped.value.code == 2, shown.err
    assert shown.out == ""
    (line,) = shown.err.splitlines()
    assert line.startswith("traincast: ")
    assert len(line) < 600
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / name]
    assert (tmp_path / name).read_bytes() == content
