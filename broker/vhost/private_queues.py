"""The queues of a virtual host that clients cannot declare: direct replies and inboxes."""

from __future__ import annotations

from typing import Final

from broker.agenda import Agenda
from broker.queues.private import GroupInbox, Inbox, ShortQueue
from broker.queues.queue import Queue
from broker.routing.subscriber import Subscriber
from broker.store.contract import Store, Ticket
from broker.store.entries import Undefined
from broker.vhost.vhost import VirtualHost

#: The largest number of direct replies that are kept for a consumer that does not read.
REPLIES_MAX: Final = 100_000
#: The inbox of every subscriber that has no inbox yet. No message is put into it.
NO_INBOX: Final = Inbox("", "", Agenda(), Store(), False, 0)


def open_reply(vhost: VirtualHost, name: str) -> Queue:
    """Return a new queue for direct replies to one consumer.

    The default exchange routes to the queue by this name. No binding can lead to the queue.
    """
    queue = ShortQueue(vhost.name, name, vhost.agenda, vhost.store, False, REPLIES_MAX)
    vhost.replies[name] = queue
    return queue


def close_reply(vhost: VirtualHost, queue: Queue) -> None:
    """Delete a queue for direct replies, because its consumer has ended."""
    del vhost.replies[queue.name]
    queue.on_deleted()
    vhost.declarations.deleted.add_queue(queue)
    vhost.declarations.evict_default_route(queue)


def new_inbox(vhost: VirtualHost, name: str, durable: bool, max_length: int) -> Inbox:
    """Return a new inbox for a session, which drops its oldest messages above `max_length`."""
    inbox = Inbox(vhost.name, name, vhost.agenda, vhost.store, durable, max_length)
    _add_inbox(vhost, inbox)
    return inbox


def new_group_inbox(vhost: VirtualHost, name: str, max_length: int) -> GroupInbox:
    """Return a new inbox for a subscription group, which drops its oldest messages above
    `max_length`. The group may make it durable.
    """
    inbox = GroupInbox(vhost.name, name, vhost.agenda, vhost.store, max_length)
    _add_inbox(vhost, inbox)
    return inbox


def _add_inbox(vhost: VirtualHost, inbox: Inbox) -> None:
    vhost.inboxes[inbox.name] = inbox
    vhost.declarations.inbox_names.add(inbox.name)


def add_subscriber(vhost: VirtualHost, subscriber: Subscriber) -> None:
    """Add a session or a subscription group to the virtual host, which then counts it."""
    vhost.subscribers[subscriber] = None


def delete_subscriber(vhost: VirtualHost, subscriber: Subscriber, ticket: Ticket | None) -> None:
    """Delete a session or a subscription group, with its inbox and bindings."""
    _delete_inbox(vhost, subscriber, ticket)
    vhost.subscribers.pop(subscriber, None)
    vhost.declarations.deleted.add_subscriber(subscriber)
    subscriber.dead = True
    vhost.bindings.remove_to(subscriber)


def _delete_inbox(vhost: VirtualHost, subscriber: Subscriber, ticket: Ticket | None) -> None:
    inbox = subscriber.inbox
    if inbox is NO_INBOX:
        return
    if inbox.durable:
        # Append this entry before `on_deleted` releases the messages: their release takes
        # effect once this entry is durable.
        vhost.store.append(
            Undefined(vhost.name, "session", subscriber.name, subscriber.number), ticket
        )
    inbox.on_deleted()
    vhost.inboxes.pop(inbox.name, None)
    vhost.declarations.inbox_names.remove(inbox.name)
