"""A Ray cluster of several nodes on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Of Ray's own code, which these tests do not judge.
RAY_WARNINGS = [
    "ignore::DeprecationWarning:ray.*",
    "ignore::FutureWarning:ray.*",
    "ignore::ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
]
_MEMORY = 80 * 2**20  # of the object store of a node; the least that Ray takes is 75 MB


@contextmanager
def cluster_of(*cores: int) -> Iterator[Any]:
    """Start a node with so many cores each, the first of them the head, and connect to it."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112  # its own name; with Ray's 15 workers hardly start on a busy machine
    import ray
    from ray.cluster_utils import Cluster

    head = {"num_cpus": cores[0], "object_store_memory": _MEMORY, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for num in cores[1:]:
            cluster.add_node(num_cpus=num, object_store_memory=_MEMORY)
        ray.init(address=cluster.address, log_to_driver=False)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def add_node(cluster: Any, *, cores: int) -> Any:
    """Add a node to a cluster and return it."""
    return cluster.add_node(num_cpus=cores, object_store_memory=_MEMORY)
