"""A published source is one TOML file: its columns, words and facts are read without a change of code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from traincast import validate
from traincast.cli.main import main
from traincast.errors import FileFormatError
from traincast.measured.dialect import Said, load_dialect, vocabulary
from traincast.measured.machines import Machines
from traincast.measured.memory import Memories, Units
from traincast.measured.models.language import Models
from traincast.measured.models.networks import Networks
from traincast.measured.programs import Frameworks, Strategies
from traincast.measured.recipes import Recipes
from traincast.measured.spellings import Spellings
from traincast.measured.tuning.lengths import Lengths
from traincast.measured.tuning.rows import Offloads, Optimizers, Programs
from traincast.measured.tuning.words import Adapters, Methods, Quantized

OURS = """\
source,gpu,n_gpus,model,seq,precision,recompute,dp,micro_batch,global_batch,step_time_s,gpus_per_node,framework
acme,H100,8,llama3-8b,4096,bf16,full,8,1,64,5.1,8,torchtitan
acme,H100,8,llama3-8b,2048,fp8,none,8,2,64,2.2,8,torchtitan
"""
THEIRS = """lab,card,cards,network,context,number format,replay,replicas,per card,all,took (s)
Acme Labs,Hopper,8,L3-8,4096,brain-16,every layer,8,1,64,5.1
Acme Labs,Hopper,8,L3-8,2048,eight bits,-,8,2,64,2.2
"""
DIALECT = """
[columns]
source = "lab"
gpu = "card"
n_gpus = "cards"
model = "network"
seq = "context"
precision = "number format"
recompute = "replay"
dp = "replicas"
micro_batch = "per card"
global_batch = "all"
step_time_s = "took (s)"
[words.source]
"Acme.*" = "acme"
[words.gpu]
"Hopper" = "H100"
[words.model]
'L(\\d)-8' = "llama3-8b"
[words.precision]
"brain-16" = "bf16"
"eight bits" = "fp8"
[words.recompute]
"every layer" = "full"
"-" = "none"
[[facts]]
when = { source = "acme" }
state = { gpus_per_node = 8, framework = "torchtitan" }
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "ours.csv").write_text(OURS)
    (tmp_path / "theirs.csv").write_text(THEIRS)
    (tmp_path / "acme.toml").write_text(DIALECT)
    return tmp_path


def test_a_table_of_a_new_source_needs_one_file(files: Path) -> None:
    ours = validate(files / "ours.csv").to_dict()
    theirs = validate(files / "theirs.csv", dialect=files / "acme.toml").to_dict()
    assert [row["status"] for row in ours["rows"]] == ["ok", "ok"]
    assert theirs["rows"] == ours["rows"]


def test_the_command_line_reads_a_dialect(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["validate", "steps", str(files / "theirs.csv"), "--dialect", str(files / "acme.toml"), "--json"])
    assert stopped.value.code == 0
    assert '"source": "acme"' in capsys.readouterr().out


def test_a_table_without_its_dialect_lacks_columns(files: Path) -> None:
    with pytest.raises(FileFormatError, match="lacks the columns source, gpu"):
        validate(files / "theirs.csv")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[column]", "unknown key 'column'"),
        ("[columns]\ngpu = 3", "columns.gpu is 3: expected a text"),
        ("[words.gpu]\n'(' = 'H100'", r"words.gpu is '\('\: not a regular expression"),
        ("[[facts]]\nwhen = { gpu = 'H100' }", r"facts\[0\].state is missing"),
        ("[[facts]]\nwhen = {}\nstate = {}\nbecause = 1", r"facts\[0\] has unknown key 'because'"),
    ],
)
def test_a_mistake_in_a_dialect_is_one_line(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(FileFormatError, match=says) as caught:
        load_dialect(path)
    assert "\n" not in str(caught.value)


TOPICS = (
    Adapters,
    Frameworks,
    Lengths,
    Machines,
    Memories,
    Methods,
    Models,
    Networks,
    Offloads,
    Optimizers,
    Programs,
    Recipes,
    Spellings,
    Quantized,
    Strategies,
    Units,
)


@pytest.mark.parametrize("kind", TOPICS)
def test_shipped_dialects_declare_every_word_and_their_patterns_compile(kind: type[Any]) -> None:
    for said in _said(vocabulary(kind)):
        assert said.columns.split()
        said.find(dict.fromkeys(said.columns.split(), "a text"))


@pytest.mark.parametrize("kind", TOPICS)
def test_a_topic_is_small_enough_to_read(kind: type[Any]) -> None:
    assert len(fields(kind)) <= 25


def test_words_are_looked_for_in_the_columns_of_a_rule() -> None:
    said = Said(columns="task notes", words="checkpointing|pack(?:ed|ing)", undenied=True)
    assert said({"notes": "Packed to 4k"})
    assert said({"task": "SFT, packing"})
    assert not said({"model": "packed"})
    assert not said({"notes": "No checkpointing"})
    assert not said({"notes": "packing=False"})
    assert not Said(columns="notes", words="lora", unless="without lora")({"notes": "without LoRA"})


def _said(value: Any) -> Iterator[Said]:
    """All rules in a vocabulary that look for words."""
    if isinstance(value, Said):
        yield value
    elif is_dataclass(value):
        for each in fields(value):
            yield from _said(getattr(value, each.name))
    elif isinstance(value, dict | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _said(item)
