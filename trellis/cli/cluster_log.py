"""The settings of the cluster, for commands that connect to its replicated log on Kafka."""

from __future__ import annotations

import argparse

from trellis import logs
from trellis.cli.parsing import CommandError, load_settings
from trellis.settings.cluster import ClusterSettings


def cluster_settings(arguments: argparse.Namespace) -> ClusterSettings:
    """Return the settings of the cluster. Raises CommandError."""
    cluster = load_settings(arguments).settings.cluster
    if not cluster.enabled:
        raise CommandError("cluster.servers is empty: name the Kafka nodes, as HOST:PORT", 2)
    logs.set_up("warning")
    try:
        import trellis.cluster.topic  # noqa: F401
    except ImportError as error:
        raise CommandError(
            f"Kafka's client cannot be imported ({error}); pip install 'trellis-broker[cluster]'"
        ) from None
    return cluster
