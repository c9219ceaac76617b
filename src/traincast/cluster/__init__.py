"""What it runs on: devices, links, clusters, and the catalog of known ones."""

from traincast.cluster.hardware import Cluster, Device, InterTopology, IntraTopology, Link

__all__ = ["Cluster", "Device", "InterTopology", "IntraTopology", "Link"]
