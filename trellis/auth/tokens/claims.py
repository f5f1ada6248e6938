"""Converts claims of a token to user name, virtual hosts, tags, roles, scopes and topic rules.

The settings of the section [jwt] name the claims. The name of a claim may be a path with dots, such
as `realm_access.roles` of Keycloak. In scopes and topic rules, `${CLAIM}` stands for the value of a
claim:

    read:*/amq.topic/plant.${sub}.*      in the key, the value must be one word
    allow all devices/${device}/#        the value must be one level of a topic

If the claim is missing or unusable, a scope or an `allow` rule grants nothing, and a `deny` rule
denies the topics of all values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote

from broker.access.reservations import is_reservation
from broker.access.rules import DENY_ALL, RULES_MAX, UserPermissions, check_rule_variables
from broker.errors import PreconditionFailed
from broker.names import fault_of
from trellis.auth.tokens.identity import TOPICS_ONLY, TokenGrants
from trellis.auth.tokens.refusal import TokenRefused
from trellis.auth.tokens.scopes import Scope
from trellis.settings.tokens import PLACEHOLDER, Jwt

#: Largest number of scopes, of tags, of roles and of virtual hosts that are read from a token.
MAX_SCOPES: Final = 200
MAX_TAGS: Final = 20
MAX_ROLES: Final = 20
MAX_VHOSTS: Final = 16

#: Characters that the value of a claim must not have in the routing key of a scope, and in a rule.
_NOT_IN_KEYS: Final = frozenset("./+#*\0")
_NOT_IN_LEVELS: Final = frozenset("/+#\0{}")
#: Placeholders of EMQX in rules, and the placeholders of Trellis that replace them.
_EMQX: Final = {
    "${clientid}": "{client_id}",
    "${username}": "{username}",
    "%c": "{client_id}",
    "%u": "{username}",
}
_ACTIONS: Final = {"pub": "publish", "sub": "subscribe", "all": "all"}

Claims = Mapping[str, Any]


def claim(claims: Claims, path: str) -> Any:
    """Return the value of a claim; None if the token lacks the claim.

    A claim whose name is the whole path has precedence over nested objects.
    """
    if path in claims:
        return claims[path]
    claim_value: Any = claims
    for name in path.split("."):
        if not isinstance(claim_value, Mapping) or name not in claim_value:
            return None
        claim_value = claim_value[name]
    return claim_value


def words(value: Any) -> list[str]:
    """Return the words in a claim's value: a list of texts, or a text with words between spaces."""
    if isinstance(value, str):
        return value.split()
    if isinstance(value, list):
        return [one for one in value if isinstance(one, str) and one]
    return []


def names(value: Any) -> list[str]:
    """Return the names in a claim's value: one name, which may have spaces, or a list of names."""
    return [value] if isinstance(value, str) and value else words(value) if value else []


class ClaimMapping:
    """The conversion of claims to a user and the user's permissions, by the section [jwt]."""

    def __init__(self, settings: Jwt) -> None:
        self._settings = settings
        self._aliases: dict[str, list[str]] = {}
        for text in settings.aliases:
            name, _, scopes = text.partition("=")
            self._aliases[name.strip()] = scopes.split()

    def user(self, claims: Claims) -> str:
        """Return the user name that the claims of a token have. Raises TokenRefused."""
        path = self._settings.user
        user = claim(claims, path)
        if not isinstance(user, str) or not user:
            raise TokenRefused(
                path, f"the claim '{path}' has no user name: it is missing, empty or not a text"
            )
        fault = fault_of(user)
        if fault:
            raise TokenRefused(path, f"the claim '{path}' is not a valid user name: {fault}")
        return user

    def grants(self, user: str, claims: Claims) -> TokenGrants:
        """Return the permissions that the claims give to the user. Raises TokenRefused."""
        settings = self._settings
        scopes, tags = self._scopes(claims)
        tags += words(claim(claims, settings.tags))[:MAX_TAGS] if settings.tags else []
        vhosts = names(claim(claims, settings.vhost)) if settings.vhost else []
        roles = names(claim(claims, settings.role)) if settings.role else []
        if settings.vhost and not vhosts:
            raise TokenRefused(
                settings.vhost, f"the claim '{settings.vhost}' must name a virtual host"
            )
        for vhost in vhosts:
            if fault_of(vhost):
                raise TokenRefused(
                    settings.vhost,
                    f"the claim '{settings.vhost}' is not the name of a virtual host: "
                    f"{fault_of(vhost)}",
                )
        hosts = vhosts[:MAX_VHOSTS] or ["/"]
        rules = self._rules(claims)
        try:
            UserPermissions(user, hosts[0], TOPICS_ONLY, rules)
        except PreconditionFailed as error:
            raise TokenRefused(settings.rules, f"{error}") from None
        return TokenGrants(scopes, tags, hosts, rules, roles[:MAX_ROLES])

    def unused(self, claims: Claims) -> list[str]:
        """Return the words of the scope claims that grant nothing in this broker.

        `trellis auth check-token` prints these words.
        """
        return [
            word
            for word in self._granted_words(claims)
            if not self._tag(word) and self._scope(word, claims) is None
        ]

    def _scopes(self, claims: Claims) -> tuple[list[Scope], list[str]]:
        """Return the scopes and tags of a token, together with the scopes and tags of
        `jwt.grants`.
        """
        scopes: list[Scope] = []
        tags: list[str] = []
        for word in self._granted_words(claims):
            tag = self._tag(word)
            scope = None if tag else self._scope(word, claims)
            if tag:
                tags.append(tag)
            elif scope is not None:
                scopes.append(scope)
        return scopes[:MAX_SCOPES], tags[:MAX_TAGS]

    def _granted_words(self, claims: Claims) -> list[str]:
        """Return the scopes of `jwt.grants` and of a token as text.

        Scopes of the token lose their prefix, and aliases are replaced by the scopes that they
        stand for. At most MAX_SCOPES words of the token are read.
        """
        prefix = self._settings.prefix
        scopes = list(self._settings.grants)
        given = [
            word for path in self._settings.scopes.split() for word in words(claim(claims, path))
        ]
        for word in given[:MAX_SCOPES]:
            if word in self._aliases:
                scopes += self._aliases[word]
            elif word.startswith(prefix):
                scopes.append(word.removeprefix(prefix))
        return scopes

    def _tag(self, word: str) -> str:
        return word[len("tag:") :] if word.startswith("tag:") else ""

    def _scope(self, word: str, claims: Claims) -> Scope | None:
        """Return the scope that a word grants.

        Return None if the word is not a scope of the broker, or if a placeholder in it has no
        usable value.
        """
        verb, colon, rest = word.partition(":")
        parts = rest.split("/") if colon else []
        # The text is cut at `/` first, so that no value of a claim adds a part.
        expanded = [
            _expanded(part, claims, _NOT_IN_KEYS if at == 2 else frozenset("\0"), escaped=True)
            for at, part in enumerate(parts)
        ]
        known = [part for part in expanded if part is not None]
        if len(known) < len(parts):
            return None
        try:
            return Scope(f"{verb}:{'/'.join(known)}")
        except ValueError:
            return None

    def _rules(self, claims: Claims) -> list[str]:
        """Return the topic rules of the setting `jwt.topic_rules`, then the rules of the token.

        If no rule can be used, return one rule that denies all topics. Raises TokenRefused for an
        invalid rule or claim, or for more than RULES_MAX rules.
        """
        path = self._settings.rules
        value = claim(claims, path) if path else None
        if not self._settings.topic_rules and value is None:
            return []
        given = list(self._settings.topic_rules)
        given += [] if value is None else _rules_of(value, path)
        if len(given) > RULES_MAX:
            raise TokenRefused(
                path,
                f"{len(given)} topic rules apply, and the limit is {RULES_MAX}: use wildcards, so "
                "that fewer rules suffice",
            )
        rules: list[str] = []
        for text in given:
            if is_reservation(text):
                raise TokenRefused(
                    path,
                    f"topic rule '{text[:100]}': a token cannot reserve client identifiers; remove "
                    "the rule",
                )
            rule = _expanded(text, claims, _NOT_IN_LEVELS)
            if rule is None and text.split()[:1] == ["deny"]:
                rule = PLACEHOLDER.sub("+", text)
            if rule is not None:
                try:
                    check_rule_variables(rule)
                except ValueError as error:
                    raise TokenRefused(path, f"topic rule '{rule}': {error}") from None
                rules.append(rule)
        return rules or [DENY_ALL]


def _expanded(
    text: str, claims: Claims, forbidden: frozenset[str], escaped: bool = False
) -> str | None:
    """Return a text with the values of claims in the place of its placeholders.

    Return None if a value is missing, or has a forbidden character. If `escaped` is True, the
    values are percent-encoded, so that `*` in a value is no wildcard of a Glob.
    """
    result, end = "", 0
    for placeholder in PLACEHOLDER.finditer(text):
        value = claim(claims, placeholder[1])
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63:
            value = str(value)
        if not isinstance(value, str) or not value or len(value) > 255:
            return None
        if any(mark in forbidden for mark in value) or not escaped and value.split() != [value]:
            return None
        try:
            result += text[end : placeholder.start()] + (
                quote(value, safe="") if escaped else value
            )
        except UnicodeEncodeError:
            return None
        end = placeholder.end()
    return result + text[end:]


def _rules_of(value: Any, path: str) -> list[str]:
    """Return the topic rules in a claim's value: texts, or rules in the form of EMQX.

    EMQX has two forms: a list of objects with `permission`, `action` and `topic`, and an object
    with lists of topics, `pub`, `sub` and `all`. `path` names the claim in the error. Raises
    TokenRefused.
    """
    try:
        if isinstance(value, str):
            return [value]
        if isinstance(value, Mapping):
            return list(_rules_by_action(value))
        if isinstance(value, list):
            return [one if isinstance(one, str) else _rule_of_object(one) for one in value]
    except (KeyError, TypeError, ValueError, AttributeError):
        pass
    raise TokenRefused(path, f"the claim '{path}' must be a list of topic rules")


def _rules_by_action(value: Mapping[str, Any]) -> Iterator[str]:
    for action, topics in value.items():
        for topic in [topics] if isinstance(topics, str) else list(topics):
            yield f"allow {_ACTIONS[action]} {_topic(topic)}"


def _rule_of_object(rule: Mapping[str, Any]) -> str:
    permission = {"allow": "allow", "deny": "deny"}[rule["permission"]]
    action = {"publish": "publish", "subscribe": "subscribe", "all": "all"}[rule["action"]]
    return f"{permission} {action} {_topic(rule['topic'])}"


def _topic(topic: str) -> str:
    for theirs, ours in _EMQX.items():
        topic = topic.replace(theirs, ours)
    return topic
