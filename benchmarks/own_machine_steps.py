"""Times whole training steps of one model in this process, or of its replicas in the processes of a launch.

    python -m benchmarks.own_machine_steps MODEL BATCH OUTPUT LOCK

Nothing watches the steps. They take turns with other processes by the file LOCK, until that file is gone. Only steps
between those whose times LOCK.steps has are counted. With several processes, the model is replicated by
DistributedDataParallel over gloo.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.own_machine_turns import Turns
from traincast.profiling.contention import quiet
from traincast.profiling.events_steps import training_step

_WARMUP: Final = 4
_MOST: Final = 2000


def main() -> None:
    """Time the steps, and write their mean as JSON."""
    model, batch, output, lock = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4])
    torch.set_num_threads(1)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    turns = Turns(lock)
    step = training_step(model, batch=batch)
    if ranks > 1:
        dist.init_process_group("gloo")
        step.module = DistributedDataParallel(step.module)
    samples: list[tuple[float, float]] = []
    ended: list[float] = []
    goes_on = torch.ones(1)
    while goes_on.item():
        with turns.turn():
            seconds = step()
            samples.append((seconds, step.waited_s))
            ended.append(time.monotonic())
        goes_on[0] = lock.exists() and len(samples) < _MOST
        if ranks > 1:
            dist.broadcast(goes_on, src=0)
    timed = json.loads(Path(f"{lock}.steps").read_text(encoding="utf-8"))[_WARMUP:]
    beside = [sample for sample, end in zip(samples, ended, strict=True) if timed[0] <= end <= timed[-1]]
    # Ranks share cores with the threads that communicate, which is part of the step: then all samples count.
    kept = [s - w for s, w in quiet(beside)] if ranks == 1 else [s for s, _ in beside]
    if os.environ.get("RANK", "0") == "0":
        facts = {"step_s": sum(kept) / len(kept), "steps": [s for s, _ in samples], "waited": [w for _, w in samples]}
        output.write_text(json.dumps(facts), encoding="utf-8")
    if ranks > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
