"""Write the index of the calibrated clusters of the catalog: ``python -m benchmarks.clusters``."""

from __future__ import annotations

from traincast.cluster.calibrated import INDEX, calibrated_clusters, write_index


def main() -> None:
    """Write the index, and say where."""
    clusters = calibrated_clusters()
    write_index(clusters)
    print(f"{len(clusters)} calibrated clusters: {INDEX}")


if __name__ == "__main__":
    main()
