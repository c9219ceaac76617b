"""Times whole training steps of one model in this process.

    python -m benchmarks.own_machine_steps MODEL BATCH OUTPUT LOCK

Nothing watches the steps. They take turns with other processes by the file LOCK, until that file is gone. Only steps
between those whose times LOCK.steps has are counted.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Final

import torch

from benchmarks.own_machine_turns import Turns
from traincast.profiling.events.steps import training_step
from traincast.profiling.timing import quiet

_WARMUP: Final = 4
_MOST: Final = 2000


def main() -> None:
    """Time the steps, and write their mean as JSON."""
    model, batch, output, lock = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4])
    torch.set_num_threads(1)
    turns = Turns(lock)
    step = training_step(model, batch=batch)
    samples: list[tuple[float, float]] = []
    ended: list[float] = []
    while lock.exists() and len(samples) < _MOST:
        with turns.turn():
            samples.append((step(), step.waited_s))
            ended.append(time.monotonic())
    timed = json.loads(Path(f"{lock}.steps").read_text(encoding="utf-8"))[_WARMUP:]
    beside = [sample for sample, end in zip(samples, ended, strict=True) if timed[0] <= end <= timed[-1]]
    kept = [seconds - waited for seconds, waited in quiet(beside)]
    facts = {"step_s": sum(kept) / len(kept), "steps": [s for s, _ in samples], "waited": [w for _, w in samples]}
    output.write_text(json.dumps(facts), encoding="utf-8")


if __name__ == "__main__":
    main()
