"""Logins with JSON Web Tokens (RFC 7519), whose keys come from a file or from an OpenID provider.

scopes.py         permissions written as in RabbitMQ, such as `read:%2F/orders`
identity.py       the user of a token, with the user's permissions in each virtual host
claims.py         claims -> user name, virtual hosts, tags, roles, scopes and topic rules
keys.py           public keys: PEM, JWKS (RFC 7517)
verifier.py       the checks of a token: header, signature, times, issuer, audience
fetching.py       documents of a provider over HTTP: discovery and JWKS
provider.py       the cached keys of a provider, and when they are fetched again
authenticator.py  logins with a token
refusal.py        the reason why a token is refused
"""
