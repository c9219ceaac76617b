"""What it runs on: devices, links, clusters, and the catalog of known ones."""

from traincast.cluster.calibrated import find_calibrated, find_calibration, find_entry, write_calibrated
from traincast.cluster.calibration import (
    FACTORS,
    FEATURES,
    MOST_LIKELY,
    Calibration,
    Correction,
    Few,
    SeenModel,
    Stall,
)
from traincast.cluster.catalog import assumed_nodes, cluster_names, device_names, load_cluster, load_device, node_names
from traincast.cluster.hardware import Cluster, Device, InterTopology, IntraTopology, Link
from traincast.cluster.interconnect import find_node
from traincast.cluster.match import find_device
from traincast.cluster.topology import effective_inter_bandwidth, effective_intra_bandwidth, hops

__all__ = [
    "FACTORS",
    "FEATURES",
    "MOST_LIKELY",
    "Calibration",
    "Cluster",
    "Correction",
    "Device",
    "Few",
    "InterTopology",
    "IntraTopology",
    "Link",
    "SeenModel",
    "Stall",
    "assumed_nodes",
    "cluster_names",
    "device_names",
    "effective_inter_bandwidth",
    "effective_intra_bandwidth",
    "find_calibrated",
    "find_calibration",
    "find_device",
    "find_entry",
    "find_node",
    "hops",
    "load_cluster",
    "load_device",
    "node_names",
    "write_calibrated",
]
