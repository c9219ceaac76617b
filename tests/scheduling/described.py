"""Clusters and logs of described jobs, for tests."""

from __future__ import annotations

from pathlib import Path

from traincast import JobLog, SharedCluster
from traincast.scheduling import Node, PlacedGpus
from traincast.scheduling.joblogs.read import load_jobs
from traincast.scheduling.space.nodes import load_nodes

MLP = "ncf:users=1000,items=1000,factors=8,layers=256x4096x256"
"""Small, and with gradients enough that a network between nodes is felt."""


def cluster(nodes: str) -> SharedCluster:
    """Nodes as ``2x8:V100``."""
    return SharedCluster(nodes=load_nodes(nodes).nodes)


def log(folder: Path, *rows: str, columns: str = "job_id,submit_s,num_gpus,model,batch,steps") -> JobLog:
    """A log of these lines."""
    path = folder / "jobs.csv"
    path.write_text("\n".join([columns, *rows]) + "\n")
    return load_jobs(path)


def on(counts: tuple[int, ...], gpu_type: str = "V100", *, size: int = 8, racks: tuple[str, ...] = ()) -> PlacedGpus:
    """So many GPUs on each of several nodes."""
    names = racks or ("",) * len(counts)
    nodes = tuple(
        Node(name=f"n{at}", num_gpus=size, gpu_type=gpu_type, rack=rack, switch=rack) for at, rack in enumerate(names)
    )
    return PlacedGpus(nodes, counts)
