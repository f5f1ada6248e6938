"""Permissions that a user needs to declare an object, to bind it, or to set a policy.

AMQP and the HTTP API call the same functions before the declaration. The functions require the
permissions that RabbitMQ requires. They also require the following, so that a declaration cannot
bypass topic rules and read permissions:

    a binding from a topic exchange     the user may read all topics that match the binding key
    a binding to a topic exchange       the user may publish every topic there, because a message
                                        keeps its routing keys (CC too) on its way
    an alternate exchange, a dead       if it is a topic exchange, the user may publish every topic
    letter exchange                     there; with `x-dead-letter-routing-key`, only this topic
    a journal                           the user is an administrator, or may read everything

A user without topic rules may publish and read every topic, so only the rule about journals
concerns this user. An exchange that does not exist yet counts as a topic exchange, because it may
become one.

A policy may name the dead letter exchange of a queue, and the queue's own arguments may name the
routing key. The policy or the queue may be declared first. So the rule about alternate and dead
letter exchanges also applies to these exchanges when an object is declared:

    a new queue                         the dead letter exchange of each policy that matches the
                                        queue, of any priority, unless only the policy sets the
                                        routing key
    a new exchange                      the alternate exchange of each policy that matches it
    a new policy                        its dead letter exchange, for any routing key, because a
                                        queue may set another one; its alternate exchange
    a new topic exchange                the new exchange, if a queue, exchange or policy names it as
                                        its dead letter exchange or alternate exchange already
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import chain

from mypy_extensions import i64

from broker.access.identity import READ_ALL, Identity
from broker.errors import AccessRefused
from broker.messages.message import topic_of
from broker.queues.arguments import DEAD_LETTER_EXCHANGE, DEAD_LETTER_KEY, JOURNAL
from broker.queues.policies import ALTERNATE, Policies, Policy
from broker.queues.queue import Queue
from broker.routing.exchanges import DelayedExchange, Exchange, TopicExchange, is_topic
from matching.grammar import swap


class DeclarationRights:
    """The rights of one user to declare objects in a virtual host. The methods raise AccessRefused.

    `administrator` is True if the user has the tag `administrator`. `exchanges`, `queues` and
    `policies` are all exchanges, queues and policies of the virtual host. `discarding` are the
    queues, deleted queues included, whose dead letters are not published yet.
    """

    def __init__(
        self,
        identity: Identity,
        administrator: bool,
        vhost: str,
        exchanges: Mapping[str, Exchange],
        queues: Mapping[str, Queue],
        discarding: Collection[Queue],
        policies: Policies,
    ) -> None:
        self._identity = identity
        self._administrator = administrator
        self._vhost = vhost
        self._exchanges = exchanges
        self._queues = queues
        self._discarding = discarding
        self._policies = policies
        #: The number of queues and exchanges that the checks have examined so far.
        self.walked: i64 = 0

    def check_exchange(
        self, name: str, kind: str, arguments: Mapping[str, object], known: bool
    ) -> None:
        """Raise AccessRefused if the user may not declare this exchange.

        `known` is True if the exchange exists already.
        """
        alternate = _text(arguments, ALTERNATE)
        self._require("exchange", name, alternate)
        if known:
            return
        role = f"alternate exchange of exchange '{name}'"
        if alternate is not None:
            self._check_target(alternate, None, role)
        else:
            for policy in self._policies.all_for_exchange(name):
                if policy.alternate is not None:
                    self._check_target(policy.alternate, None, f"{role} by policy '{policy.name}'")
        if kind == DelayedExchange.kind:
            kind = str(arguments.get("x-delayed-type"))
        if kind == TopicExchange.kind and not self._identity.may_publish_everything(name):
            self._check_ways_to(name)

    def check_queue(self, name: str, arguments: Mapping[str, object], known: bool) -> None:
        """Raise AccessRefused if the user may not declare this queue.

        `known` is True if the queue exists already.
        """
        dead_letter_exchange = _text(arguments, DEAD_LETTER_EXCHANGE)
        self._require("queue", name, dead_letter_exchange)
        if known:
            return
        self._check_journal(arguments, f"queue '{name}'")
        role = f"dead letter exchange of queue '{name}'"
        key = _text(arguments, DEAD_LETTER_KEY)
        if dead_letter_exchange is not None:
            self._check_target(dead_letter_exchange, key, role)
            return
        kind = arguments.get("x-queue-type")
        if kind == "stream":
            return  # A stream has no dead letters.
        for policy in self._policies.all_for_queue(name, kind):
            target = _text(policy.arguments, DEAD_LETTER_EXCHANGE)
            # If the policy sets exchange and routing key, the author of the policy chose the topic,
            # not this user.
            if target is not None and (key is not None or DEAD_LETTER_KEY not in policy.arguments):
                self._check_target(target, key, f"{role} by policy '{policy.name}'")

    def check_binding(self, source: Exchange, key: str, destination: Exchange | None) -> None:
        """Raise AccessRefused if topic rules forbid the user to bind `destination` to `source`.

        `key` is the binding key. `destination` is None if the binding leads to a queue.
        """
        check_source(self._identity, source, key, self._vhost)
        if destination is not None:
            self._check_target(
                destination.name, None, f"destination of a binding of exchange '{source.name}'"
            )

    def check_policy(self, policy: Policy) -> None:
        """Raise AccessRefused if the user may not set this policy.

        The user must be permitted to publish every topic to the dead letter exchange and the
        alternate exchange that the policy names.
        """
        thing = f"policy '{policy.name}'"
        target = _text(policy.arguments, DEAD_LETTER_EXCHANGE)
        if target is not None:
            self._check_target(target, None, f"dead letter exchange of {thing}")
        if policy.alternate is not None:
            self._check_target(policy.alternate, None, f"alternate exchange of {thing}")

    def _require(self, kind: str, name: str, target: str | None) -> None:
        """Raise AccessRefused if the user may not declare an object that passes messages to
        `target`.

        `kind` and `name` name the object. `target` is the name of an exchange, or None if the
        declaration names no exchange.
        """
        may = self._identity.may
        may("configure", kind, name, self._vhost)
        if target is not None:
            may("read", kind, name, self._vhost)
            # The default exchange, whose name is empty, has this name in permissions.
            may("write", "exchange", target or "amq.default", self._vhost)

    def _check_journal(self, arguments: Mapping[str, object], thing: str) -> None:
        """Raise AccessRefused if `arguments` ask for a journal that the user may not declare.

        `thing` names the queue in the error.
        """
        if (
            arguments.get(JOURNAL) is True
            and not self._administrator
            and not self._identity.may_read_everything()
        ):
            raise AccessRefused(
                f"argument '{JOURNAL}' of {thing} in vhost '{self._vhost}' refused for user "
                f"'{self._identity.name}': a journal records all messages of the vhost, so the "
                "user needs the tag 'administrator', or the read permission '.*'"
            )

    def _check_ways_to(self, target: str) -> None:
        """Raise AccessRefused if forbidden topics could pass to the new topic exchange `target`.

        Topics could pass if an existing queue, exchange or policy names this exchange as its dead
        letter exchange or alternate exchange. This method examines all queues, exchanges and
        policies of the virtual host.
        """
        self.walked += len(self._exchanges)
        for queue in chain(self._queues.values(), self._discarding):
            self.walked += 1
            if queue.arguments.dead_letter_exchange == target:
                given = queue.arguments.arguments
                # A routing key that a policy sets may change, so any key is possible.
                key = _text(given, DEAD_LETTER_KEY) if DEAD_LETTER_EXCHANGE in given else None
                self._check_target(target, key, f"dead letter exchange of queue '{queue.name}'")
        for exchange in self._exchanges.values():
            if exchange.alternate == target:
                role = f"alternate exchange of exchange '{exchange.name}'"
                self._check_target(target, None, role)
        for policy in self._policies.by_name.values():
            if target in (policy.arguments.get(DEAD_LETTER_EXCHANGE), policy.alternate):
                self._check_target(target, None, f"target of policy '{policy.name}'")

    def _check_target(self, target: str, key: str | None, role: str) -> None:
        """Raise AccessRefused if messages that arrive at an exchange could have forbidden topics.

        `key` is the routing key with which they arrive, or None for any routing key. `role` is the
        use of the exchange, for the text of the error.
        """
        exchange = self._exchanges.get(target)
        if exchange is not None and not is_topic(exchange):
            return
        identity = self._identity
        if identity.may_publish_everything(target):
            return
        if key is not None and identity.may_route(target, key, topic_of(key)):
            return
        keys = "any routing key" if key is None else f"routing key '{key}'"
        raise AccessRefused(
            f"use of exchange '{target}' in vhost '{self._vhost}' as {role} refused for user "
            f"'{identity.name}': messages with {keys} would reach this exchange, and the user's "
            "topic rules do not allow the user to publish all of them"
        )


def _text(arguments: Mapping[str, object], name: str) -> str | None:
    """Return the value of an argument if it is a string; else None."""
    value = arguments.get(name)
    return value if isinstance(value, str) else None


def check_source(identity: Identity, source: Exchange, key: str, vhost: str) -> None:
    """Raise AccessRefused unless the identity may read all topics that match the binding key.

    A queue may have other consumers, so permission for a part of the topics is not enough. The
    key is converted to an MQTT filter, which the access rules can check. A `#` within the key
    becomes the end of the filter, because MQTT allows `#` at the end only; the filter then matches
    more topics than the key.
    """
    if not is_topic(source):
        return
    words = swap(key).split("/")
    wider = words[: words.index("#") + 1] if "#" in words else words
    topic_filter = "/".join("+" if word == "*" else word for word in wider)
    if identity.read_scope(source.name, key, topic_filter, False) != READ_ALL:
        raise AccessRefused(
            f"read access to topic '{key}' in exchange '{source.name}' in vhost '{vhost}' refused "
            f"for user '{identity.name}'"
        )
