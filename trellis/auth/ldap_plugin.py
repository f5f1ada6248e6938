"""A plugin for logins with LDAP, through the interface of amqtt's plugins.

The plugin has the options of amqtt's own plugin (amqtt.contrib.ldap.UserAuthLdapPlugin), and
replaces it, because amqtt's plugin has three faults. It keeps one connection to the LDAP server,
and refuses every login once this connection is lost. It does not escape the user name in the
search, so the name `*` finds all users. It tries an empty password, which some LDAP servers take as
an anonymous login. In contrast, this plugin

    - connects for each login, in a thread, with a time limit;
    - escapes the user name (RFC 4515, section 3);
    - refuses an empty password (RFC 4513, section 5.1.2), and a user name that several entries
      have.

The settings name the plugin by its class: `trellis.auth.ldap_plugin.LdapAuthPlugin`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Final

import ldap
from amqtt.plugins.base import BaseAuthPlugin
from amqtt.session import Session
from ldap.filter import escape_filter_chars

#: Seconds that each answer of the LDAP server may take. A login has three requests: the login of
#: the plugin, the search, and the login of the user.
ANSWER_SECONDS: Final = 2.0
#: The attribute list that requests no attributes (RFC 4511, section 4.5.1.8), because the search
#: needs only the names of entries.
_NO_ATTRIBUTES: Final = ("1.1",)


class LdapAuthPlugin(BaseAuthPlugin):  # type: ignore[misc]  # amqtt ships no types
    """A plugin that accepts users whose name and password the LDAP server accepts.

    The plugin leaves the decision about clients without a user name to other plugins.
    """

    async def authenticate(self, *, session: Session) -> bool | None:
        """Return True if the LDAP server accepts the name and the password, else False.

        Return None for a client without a user name. Raises ldap.LDAPError if the LDAP server does
        not answer, or refuses the search.
        """
        if session.username is None:
            return None
        if not session.password:
            return False
        return await asyncio.to_thread(self._accepts, session.username, session.password)

    def _accepts(self, name: str, password: str) -> bool:
        """True if exactly one entry has the user name, and can log in with the password."""
        config = self.config
        pairs = self._bound(config.bind_dn, config.bind_password).search_s(
            config.base_dn,
            ldap.SCOPE_SUBTREE,
            f"({config.user_attribute}={escape_filter_chars(name)})",
            list(_NO_ATTRIBUTES),
        )
        entries = [entry for entry, _ in pairs if entry]  # A referral has no entry.
        if len(entries) != 1:
            return False
        try:
            self._bound(entries[0], password)
        except ldap.INVALID_CREDENTIALS:
            return False
        return True

    def _bound(self, entry: str, password: str) -> Any:
        """Return a new connection to the LDAP server, logged in as `entry`. Raises LDAPError."""
        connection = ldap.initialize(self.config.server)
        connection.protocol_version = ldap.VERSION3
        connection.set_option(ldap.OPT_NETWORK_TIMEOUT, ANSWER_SECONDS)
        connection.set_option(ldap.OPT_TIMEOUT, ANSWER_SECONDS)
        connection.simple_bind_s(entry, password)
        return connection

    @dataclass
    class Config:
        """The options of the plugin: the same options as amqtt's LDAP plugins have."""

        #: URL of the LDAP server, such as ldaps://ldap.example.
        server: str
        #: Entry below which users are searched, such as ou=people,dc=example.
        base_dn: str
        #: Attribute that holds the user name, such as uid.
        user_attribute: str
        #: Entry and password with which the plugin logs in to search. The entry needs no right to
        #: write.
        bind_dn: str
        bind_password: str
