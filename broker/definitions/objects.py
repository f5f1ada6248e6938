"""Import of one object of a definitions document into the broker.

If a part of an object is unknown to Trellis, or has another effect than in RabbitMQ, the object is
still imported. The part is left out or kept without effect, and reported with a text from
broker/compatibility.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from broker.access.roles import grants_of
from broker.access.rules import DENY_ALL
from broker.broker import Broker
from broker.compatibility import (
    COMPONENTS,
    EQUAL,
    FIELDS,
    MISSING,
    MQTT_SESSION,
    OTHER_PARAMETER,
    OTHER_TAG,
    QUEUE_TYPES,
    REQUIRED_FIELDS,
    TRACING,
    USER_TAGS,
    Comparison,
    judge_argument,
    judge_exchange_argument,
    judge_global_parameter,
    judge_policy_key,
)
from broker.errors import PreconditionFailed
from broker.queues.arguments import EFFECTIVE_ARGUMENTS, QueueArguments
from broker.queues.destination import Destination
from broker.queues.policies import EFFECTIVE_KEYS, Policy, operator_policy_of, policy_of
from broker.routing.binding import Binding
from broker.routing.exchanges.base import ExchangeOptions
from broker.store.contract import Ticket
from broker.vhost.options import OPTIONS, USER_LIMITS, VHOST_LIMITS, limits_of, options_of
from broker.vhost.parameters import GLOBAL, OPERATOR_POLICY
from broker.vhost.vhost import VirtualHost

Row = Mapping[str, object]

#: The arguments of exchanges that have an effect.
_EXCHANGE_ARGUMENTS: Final = (
    "alternate-exchange",
    "x-delayed-type",
    "hash-header",
    "hash-property",
    "x-matcher",
    "x-recent-history-length",
    "x-recent-history-no-store",
    "x-cache-size",
    "x-cache-ttl",
)
#: Components of parameters: the limits of a virtual host, and policies.
_VHOST_LIMITS: Final = "vhost-limits"
_POLICY: Final = "policy"
#: An error about missing fields shows this number of unknown fields at most, and this number of
#: characters of each name.
_UNKNOWN_SHOWN: Final = 3
_FIELD_SHOWN: Final = 50
#: Prefix of the names of the queues that are sessions of RabbitMQ's MQTT clients.
_MQTT_PREFIX: Final = "mqtt-subscription-"


class ObjectImport:
    """The import of single objects of a definitions document into the broker.

    `verdicts` lists the parts of the last object that were left out, or that have another effect
    than in RabbitMQ.
    """

    def __init__(
        self, broker: Broker, check_hash: Callable[[str, str], str], ticket: Ticket | None
    ) -> None:
        self.verdicts: list[Comparison] = []
        self._broker = broker
        self._check_hash = check_hash
        self._ticket = ticket
        #: (virtual host, user) of the users that could not enter the virtual host before.
        self._fresh: set[tuple[str, str]] = set()

    def add(self, section: str, row: Row) -> None:
        """Import one object of a section. Raises BrokerError or ValueError if it is refused."""
        _check_required(section, row)
        if section == "vhosts":
            self._add_vhost(row)
        elif section == "roles":
            self._add_role(row)
        elif section == "users":
            self._add_user(row)
        elif section == "permissions":
            self._add_permission(row)
        elif section == "topic_permissions":
            self._add_topic_permission(row)
        elif section == "topic_rules":
            self._add_topic_rules(row)
        elif section == "parameters":
            self._add_parameter(row)
        elif section == "global_parameters":
            self._add_global_parameter(row)
        elif section == "operator_policies":
            self._set_operator_policy(self._vhost(row), _text(row, "name"), row)
        elif section == "policies":
            self._set_policy(self._vhost(row), _text(row, "name"), row)
        elif section == "exchanges":
            self._add_exchange(row)
        elif section == "queues":
            self._add_queue(row)
        else:
            self._add_binding(row)
        known = FIELDS[section]
        for field, value in row.items():
            if field not in known and value:
                self._note(Comparison(MISSING, f"the unknown field '{field}' was left out"))

    def _note(self, verdict: Comparison, item: str = "") -> None:
        """Add an entry to `verdicts`, unless its kind is EQUAL (no difference from RabbitMQ).

        `item` names the part of the object that the verdict is about: the subject of its text.
        """
        if verdict.kind != EQUAL:
            text = f"{item} {verdict.text}" if item else verdict.text
            self.verdicts.append(Comparison(verdict.kind, text))

    # -- virtual hosts and users

    def _add_vhost(self, row: Row) -> None:
        name = _text(row, "name")
        metadata = row.get("metadata")
        given = {**metadata, **row} if isinstance(metadata, dict) else row
        taken: dict[str, object] = {}
        for field in (*OPTIONS, "limits"):
            if field not in given:
                continue
            try:
                options_of(name, {field: given[field]})
                taken[field] = given[field]
            except PreconditionFailed as error:
                self._note(Comparison(MISSING, f"the field '{field}' was left out: {error}"))
        known = self._broker.vhosts.get(name)
        before = {} if known is None else known.options.row
        options = options_of(name, {**before, **taken}) if taken else None
        self._broker.create_vhost(name, self._ticket, options)
        default = taken.get("default_queue_type")
        if isinstance(default, str):
            self._note(QUEUE_TYPES.get(default, Comparison(EQUAL, "")), f"default type '{default}'")
        if given.get("tracing") is True:
            self._note(TRACING)

    def _add_user(self, row: Row) -> None:
        name = _text(row, "name")
        tags = row.get("tags", [])
        if isinstance(tags, str):
            tags = [tag.strip() for tag in tags.split(",") if tag.strip()]
        if "password" in row and "password_hash" not in row:
            raise PreconditionFailed(
                "a definitions document needs 'password_hash' instead of 'password': set it to the "
                "output of `trellis hash-password`, or import users with passwords with `trellis "
                "users import FILE`"
            )
        password_hash = self._check_hash(
            _text(row, "password_hash"), str(row.get("hashing_algorithm", ""))
        )
        taken = [str(tag) for tag in tags] if isinstance(tags, list) else []
        limits: dict[str, int] | None = None
        if "limits" in row:
            limits = self._limits(f"user '{name}'", USER_LIMITS, row["limits"])
        role = _text(row, "role") if "role" in row else None
        self._broker.users.define(name, password_hash, taken, self._ticket, limits, role)
        for tag in taken:
            self._note(USER_TAGS.get(tag, OTHER_TAG), f"tag '{tag}'")

    def _add_role(self, row: Row) -> None:
        grants = grants_of(row.get("vhosts"))
        for vhost in grants:
            self._vhost({"vhost": vhost})
        self._broker.users.define_role(_text(row, "name"), grants, self._ticket)

    def _limits(self, thing: str, known: tuple[str, ...], given: object) -> dict[str, int]:
        """Return the valid limits in `given`.

        Leave each invalid limit out, and add the reason to `verdicts`. `thing` names the owner of
        the limits in errors, and `known` has the names of all limits.
        """
        if not isinstance(given, dict):
            return limits_of(thing, known, given or [])
        taken: dict[str, int] = {}
        for limit, value in given.items():
            try:
                taken |= limits_of(thing, known, {limit: value})
            except PreconditionFailed as error:
                self._note(Comparison(MISSING, f"limit '{limit}' was left out: {error}"))
        return taken

    def _add_permission(self, row: Row) -> None:
        self._vhost(row)
        vhost, user = _text(row, "vhost"), _text(row, "user")
        if self._broker.users.set_permission(
            vhost,
            user,
            _text(row, "configure"),
            _text(row, "write"),
            _text(row, "read"),
            self._ticket,
        ):
            self._fresh.add((vhost, user))

    def _add_topic_permission(self, row: Row) -> None:
        self._vhost(row)
        self._broker.users.set_topic_permission(
            _text(row, "vhost"),
            _text(row, "user"),
            _text(row, "exchange"),
            (_text(row, "write"), _text(row, "read")),
            self._ticket,
        )

    def _add_topic_rules(self, row: Row) -> None:
        self._vhost(row)
        vhost, user = _text(row, "vhost"), _text(row, "user")
        rules = row.get("rules")
        try:
            if not isinstance(rules, list) or not all(isinstance(rule, str) for rule in rules):
                raise PreconditionFailed(
                    f"the definition's field 'rules' must be a list of strings, not {rules!r}"
                )
            self._broker.users.set_rules(vhost, user, [str(rule) for rule in rules], self._ticket)
        except PreconditionFailed as error:
            if (vhost, user) not in self._fresh:
                raise
            # Without rules, the new user could use every topic.
            self._broker.users.set_rules(vhost, user, [DENY_ALL], self._ticket)
            raise PreconditionFailed(
                f"{error}; until you set valid rules, user '{user}' may use no topic"
            ) from None

    # -- parameters and policies

    def _add_parameter(self, row: Row) -> None:
        vhost = self._vhost(row)
        component, name, value = _text(row, "component"), _text(row, "name"), row.get("value")
        if component == _VHOST_LIMITS:
            limits = self._limits(f"vhost '{vhost.name}'", VHOST_LIMITS, value)
            options = vhost.options.with_limits(limits)
            self._broker.create_vhost(vhost.name, self._ticket, options)
            return
        if component in (OPERATOR_POLICY, _POLICY):
            if not isinstance(value, dict):
                raise PreconditionFailed(
                    f"the definition's field 'value' must be an object, not {value!r}"
                )
            if component == _POLICY:
                self._set_policy(vhost, name, value)
            else:
                self._set_operator_policy(vhost, name, value)
            return
        if component == GLOBAL:
            raise PreconditionFailed(
                "the parameter has no component: move it to the section global_parameters"
            )
        vhost.parameters.set(component, name, value, self._ticket)
        self._note(COMPONENTS.get(component, OTHER_PARAMETER), f"component '{component}'")

    def _add_global_parameter(self, row: Row) -> None:
        name = _text(row, "name")
        self._broker.vhosts["/"].parameters.set(GLOBAL, name, row.get("value"), self._ticket)
        self._note(judge_global_parameter(name), "the parameter")

    def _set_policy(self, vhost: VirtualHost, name: str, row: Row) -> None:
        policy = self._policy(vhost, name, row, policy_of)
        vhost.applied_policies.set_policy(policy, self._ticket)

    def _set_operator_policy(self, vhost: VirtualHost, name: str, row: Row) -> None:
        policy = self._policy(vhost, name, row, operator_policy_of)
        vhost.applied_policies.set_operator_policy(policy, self._ticket)

    def _policy(
        self,
        vhost: VirtualHost,
        name: str,
        row: Row,
        make: Callable[[str, str, Row], Policy],
    ) -> Policy:
        """Make the policy without its invalid keys, by calling `make(vhost name, name, row)`.

        Add a verdict for each key that is invalid, or has another effect than in RabbitMQ. Raises
        PreconditionFailed if no key is valid, or the policy itself is not valid.
        """
        definition = row.get("definition")
        if not isinstance(definition, dict) or not definition:
            return make(vhost.name, name, row)
        taken: dict[str, object] = {}
        first: PreconditionFailed | None = None
        for key, value in definition.items():
            verdict = judge_policy_key(str(key), EFFECTIVE_KEYS)
            try:
                make(vhost.name, name, {**row, "definition": {key: value}})
            except PreconditionFailed as error:
                first = first or error
                text = verdict.text if verdict.kind == MISSING else f"was left out: {error}"
                self._note(Comparison(MISSING, text), f"key '{key}'")
                continue
            taken[str(key)] = value
            self._note(verdict, f"key '{key}'")
        if not taken and first is not None:
            raise first
        return make(vhost.name, name, {**row, "definition": taken})

    # -- exchanges, queues, bindings

    def _add_exchange(self, row: Row) -> None:
        arguments = _table(row, "arguments")
        options = ExchangeOptions(
            _flag(row, "durable"), _flag(row, "auto_delete"), _flag(row, "internal"), arguments
        )
        self._vhost(row).declare_exchange(
            _text(row, "name"), _text(row, "type"), options, self._ticket
        )
        for argument in arguments:
            self._note(
                judge_exchange_argument(argument, _EXCHANGE_ARGUMENTS), f"argument '{argument}'"
            )

    def _add_queue(self, row: Row) -> None:
        vhost, name = self._vhost(row), _text(row, "name")
        if name.startswith(_MQTT_PREFIX):
            raise PreconditionFailed(MQTT_SESSION.text)
        given = dict(_table(row, "arguments"))
        queue_type = row.get("type")
        if "x-queue-type" not in given and queue_type in ("quorum", "stream"):
            given["x-queue-type"] = queue_type
        arguments = self._queue_arguments(vhost, name, given)
        vhost.declare_queue(
            name,
            _flag(row, "durable"),
            arguments,
            None,
            False,
            _flag(row, "auto_delete"),
            self._ticket,
        )

    def _queue_arguments(
        self, vhost: VirtualHost, name: str, given: Mapping[str, object]
    ) -> dict[str, object]:
        """Return `given` without the arguments that are invalid, alone or together with the others
        or the queue's policy. Add a verdict for each argument to `verdicts`.
        """
        policy, exists = vhost.policies.arguments(name, given), name in vhost.queues
        taken: dict[str, object] = {}
        # The type decides which other arguments are valid, and a dead letter key needs an exchange.
        for argument in sorted(given, key=_argument_order):
            value = given[argument]
            verdict = judge_argument(argument, EFFECTIVE_ARGUMENTS)
            try:
                QueueArguments(name, vhost.name, {**taken, argument: value}, policy, exists)
            except PreconditionFailed as error:
                self._note(Comparison(MISSING, f"was left out: {error}"), f"argument '{argument}'")
                continue
            taken[argument] = value
            if argument == "x-queue-type":
                self._note(QUEUE_TYPES[str(value)], f"type '{value}'")
            elif argument != "x-delivery-limit" or taken.get("x-queue-type") != "quorum":
                # In RabbitMQ, only quorum queues have a delivery limit, with the same effect as in
                # Trellis. The verdict in the tables is about the other queue types.
                self._note(verdict, f"argument '{argument}'")
        return {argument: taken[argument] for argument in given if argument in taken}

    def _add_binding(self, row: Row) -> None:
        vhost = self._vhost(row)
        source, name = _text(row, "source"), _text(row, "destination")
        if not source:
            raise PreconditionFailed(
                "the default exchange is bound to every queue, and accepts no other binding"
            )
        if name.startswith(_MQTT_PREFIX) and row.get("destination_type") == "queue":
            raise PreconditionFailed(MQTT_SESSION.text)
        target: Destination = (
            vhost.exchange(name) if row.get("destination_type") == "exchange" else vhost.queue(name)
        )
        vhost.bind(
            source,
            Binding(_text(row, "routing_key"), target, arguments=_table(row, "arguments")),
            self._ticket,
        )

    def _vhost(self, row: Row) -> VirtualHost:
        name = _text(row, "vhost")
        vhost = self._broker.vhosts.get(name)
        if vhost is None:
            raise PreconditionFailed(f"there is no vhost '{name}': create it first")
        return vhost


def _argument_order(argument: str) -> tuple[int, str]:
    if argument == "x-queue-type":
        return (0, argument)
    return (1 if argument == "x-dead-letter-exchange" else 2, argument)


def _check_required(section: str, row: Row) -> None:
    """Raise PreconditionFailed if an object of a section lacks a required field.

    The error names all missing fields, and some unknown fields of the object: a field is often
    missing because its name is misspelt.
    """
    missing = [field for field in REQUIRED_FIELDS.get(section, ("name",)) if field not in row]
    if not missing:
        return
    text = f"lacks the {_quoted(missing)}"
    unknown = [str(field)[:_FIELD_SHOWN] for field in row if field not in FIELDS[section]]
    if unknown:
        text += f", and has the unknown {_quoted(unknown[:_UNKNOWN_SHOWN])}"
    raise PreconditionFailed(text)


def _quoted(fields: list[str]) -> str:
    return f"field{'s' if len(fields) > 1 else ''} {', '.join(map(repr, fields))}"


def _text(row: Row, field: str) -> str:
    value = row.get(field)
    if not isinstance(value, str):
        raise PreconditionFailed(
            f"the definition's field '{field}' must be a string, not {value!r}"
        )
    return value


def _flag(row: Row, field: str) -> bool:
    value = row.get(field, False)
    if not isinstance(value, bool):
        raise PreconditionFailed(
            f"the definition's field '{field}' must be true or false, not {value!r}"
        )
    return value


def _table(row: Row, field: str) -> dict[str, object]:
    value = row.get(field, {})
    if not isinstance(value, dict):
        raise PreconditionFailed(
            f"the definition's field '{field}' must be an object, not {value!r}"
        )
    return value
