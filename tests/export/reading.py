"""What exporters wrote, read back: one flat mapping per framework, and the degrees in it by our names."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from typing import Any


def read_command(text: str) -> dict[str, str]:
    """Flags of a command; one without a value is the empty string."""
    plain = "\n".join(line for line in text.splitlines() if not line.startswith(("#", "export", "unset")))
    words = shlex.split(plain.replace("\\\n", " "))
    found: dict[str, str] = {}
    flag = ""
    for word in words[words.index("pretrain_gpt.py") + 1 : words.index("$@")]:
        if word.startswith("--"):
            assert word not in found, f"{word} stands twice"
            flag = word
            found[flag] = ""
        else:
            assert not found[flag], f"{flag} has two values"
            found[flag] = word
    return found


def read_yaml(text: str) -> dict[str, Any]:
    """Nested mappings of scalars, indented by two spaces: all that is written."""
    root: dict[str, Any] = {}
    open_at = [root]
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        depth = (len(line) - len(line.lstrip())) // 2
        key, colon, value = line.strip().partition(":")
        assert colon, line
        del open_at[depth + 1 :]
        assert key not in open_at[depth], f"{key} stands twice"
        if value:
            open_at[depth][key] = _scalar(value.strip())
        else:
            inner: dict[str, Any] = {}
            open_at[depth][key] = inner
            open_at.append(inner)
    return root


def _scalar(text: str) -> Any:
    """A value as YAML 1.1 reads it, as far as it is written: a number with an exponent has a point."""
    if text in ("true", "false"):
        return text == "true"
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    if re.fullmatch(r"-?\d+\.\d*(e[-+]\d+)?", text):
        return float(text)
    return json.loads(text) if text[0] in '["' else text


def read_export(text: str, framework: str) -> dict[str, Any]:
    """The text, parsed by its own format."""
    readers = {"megatron": read_command, "torchtitan": tomllib.loads, "deepspeed": json.loads, "nanotron": read_yaml}
    return readers[framework](text)  # type: ignore[operator, no-any-return]


def names_in(text: str, framework: str) -> Iterator[tuple[str, Any]]:
    """Every setting that the text has, by its dotted name, with its value."""
    found = read_export(text, framework)
    found.pop("_comment", None)
    yield from _leaves(found, "")


def _leaves(section: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in section.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def degrees_in(found: dict[str, Any], framework: str, devices: int) -> dict[str, int]:
    """dp, tp, pp, cp, ep, micro batch, accumulation and global batch, as the framework would work them out."""
    return {"megatron": _megatron, "torchtitan": _torchtitan, "deepspeed": _deepspeed, "nanotron": _nanotron}[
        framework
    ](found, devices)


def _megatron(found: dict[str, Any], devices: int) -> dict[str, int]:
    tp, pp, cp = (int(found[f"--{name}-parallel-size"]) for name in ("tensor-model", "pipeline-model", "context"))
    assert devices % (tp * pp * cp) == 0
    dp = devices // (tp * pp * cp)
    micro, whole = int(found["--micro-batch-size"]), int(found["--global-batch-size"])
    assert whole % (micro * dp) == 0
    ep = int(found.get("--expert-model-parallel-size", 1))
    steps = whole // (micro * dp)
    return {"dp": dp, "tp": tp, "pp": pp, "cp": cp, "ep": ep, "micro": micro, "steps": steps, "whole": whole}


def _torchtitan(found: dict[str, Any], devices: int) -> dict[str, int]:
    spread, training = found["parallelism"], found["training"]
    dp = spread["data_parallel_replicate_degree"] * spread["data_parallel_shard_degree"]
    tp, pp, cp, ep = (spread[f"{n}_parallel_degree"] for n in ("tensor", "pipeline", "context", "expert"))
    assert dp * tp * pp * cp == devices
    local, whole = training["local_batch_size"], training["global_batch_size"]
    micro = spread["pipeline_parallel_microbatch_size"] if pp > 1 else local
    assert whole % (local * dp) == 0
    steps = local // micro * (whole // (local * dp))
    return {"dp": dp, "tp": tp, "pp": pp, "cp": cp, "ep": ep, "micro": micro, "steps": steps, "whole": whole}


def _deepspeed(found: dict[str, Any], devices: int) -> dict[str, int]:
    tp = found.get("tensor_parallel", {}).get("autotp_size", 1)
    pp = found.get("pipeline", {}).get("stages", 1)
    cp = found.get("sequence_parallel_size", 1)
    ep = found.get("expert_parallel", {}).get("autoep_size", 1)
    assert devices % (tp * pp * cp) == 0
    dp = devices // (tp * pp * cp)
    assert cp == 1 or found["data_parallel_size"] == dp
    micro, steps = found["train_micro_batch_size_per_gpu"], found["gradient_accumulation_steps"]
    # DeepSpeed checks the whole against every rank of a tensor group, so with one it must not stand there.
    whole = micro * steps * dp
    assert found.get("train_batch_size") == (whole if tp == 1 else None)
    return {"dp": dp, "tp": tp, "pp": pp, "cp": cp, "ep": ep, "micro": micro, "steps": steps, "whole": whole}


def _nanotron(found: dict[str, Any], devices: int) -> dict[str, int]:
    spread, tokens = found["parallelism"], found["tokens"]
    dp, tp, pp, cp = spread["dp"], spread["tp"], spread["pp"], 1
    assert dp * tp * pp == devices
    micro, steps = tokens["micro_batch_size"], tokens["batch_accumulation_per_replica"]
    ep = spread["expert_parallel_size"]
    whole = micro * steps * dp
    return {"dp": dp, "tp": tp, "pp": pp, "cp": cp, "ep": ep, "micro": micro, "steps": steps, "whole": whole}
