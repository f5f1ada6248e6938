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
        raise CommandError(
            "this broker is not a node of a cluster (cluster.servers is empty): give the settings "
            "of a node with --config FILE, or name the Kafka nodes with --cluster-servers "
            "HOST:PORT; `trellis cluster demo` starts a cluster for a trial",
            2,
        )
    try:
        import trellis.cluster.topic  # noqa: F401
        from trellis.cluster.client_options import CLIENT_EVENT
    except ImportError as error:
        raise CommandError(
            f"Kafka's client cannot be imported ({error}); pip install 'trellis-broker[cluster]'"
        ) from None
    # The log lines of Kafka's client are not printed: an error has their text (`failure`).
    logs.set_up("warning", without=CLIENT_EVENT)
    return cluster


def failure(error: Exception) -> CommandError:
    """Return a CommandError with the text of an error of the log, and the reason in brackets.

    The reason is what Kafka's client library has logged; the notes of `error` have this text.
    """
    notes = "; ".join(getattr(error, "__notes__", ()))
    return CommandError(f"{error} ({notes})" if notes else str(error))
