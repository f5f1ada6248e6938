"""A source of routes for `trellis route` that asks no running broker."""

from __future__ import annotations

import sys
from typing import Any

from broker.definitions.rabbitmq import REFUSED, rows_of
from broker.definitions.trial import TrialImport
from broker.errors import BrokerError, NotFound
from protocols.mqtt.options import MqttOptions
from trellis.auth.passwords import check_hash
from trellis.cli.api_client import ApiRefused
from trellis.cli.doctor import read_document
from trellis.cli.parsing import CommandError
from trellis.cli.readable import count_text
from trellis.monitoring.route_question import SECTIONS, RouteQuestion
from trellis.monitoring.route_rows import RouteAnswer
from trellis.settings.errors import printable


class RoutesInMemory:
    """A RouteSource that uses a broker in memory, which has imported definitions."""

    def __init__(self, trial: TrialImport) -> None:
        self._broker = trial.broker
        while not self._broker.agenda.idle:
            self._broker.agenda.turn()

    @classmethod
    def of_file(cls, path: str) -> RoutesInMemory:
        """Import a definitions file, and return the source of routes. Raises CommandError."""
        trial = TrialImport(check_hash)
        refused = 0
        try:
            rows = list(rows_of(read_document(path)))
        except BrokerError as error:
            raise CommandError(str(error), 2) from None
        for section, row in rows:
            refused += any(one.kind == REFUSED for one in trial.take(section, row))
        if refused:
            objects = count_text(refused, "object")
            note = f"note: {objects} of {path} cannot be imported; see `trellis doctor {path}`"
            print(printable(note), file=sys.stderr)
        return cls(trial)

    def ask(self, vhost: str, question: RouteQuestion, limit: int = 0) -> dict[str, Any]:
        """Return the route of a message in the broker in memory. Raises CommandError."""
        users = self._broker.users.by_name
        try:
            if vhost not in self._broker.vhosts:
                raise NotFound(f"there is no vhost '{vhost}'")
            answer = RouteAnswer(
                self._broker.vhosts[vhost], question, users.get, MqttOptions().max_levels, limit
            )
        except BrokerError as error:
            raise ApiRefused(str(error), 404 if isinstance(error, NotFound) else 400) from None
        sections: dict[str, Any] = {section: [] for section in SECTIONS}
        for row in answer.rows():
            if row is not None:
                sections[row[0]].append(row[1])
        return answer.head | sections
