"""Access control: identities, permissions, topic rules and users.

Reading order:

    identity       a logged-in user with its permissions, and the interface of authenticators
    rules          topic rules: ordered rules that allow or deny publishing and subscribing
    variables      the names in braces that topic rules replace
    reservations   client identifiers that rules reserve for users
    roles          named sets of permissions and topic rules that many users share
    users          the users that the broker stores, with their permissions

The authenticators are in trellis/auth; docs/security.md describes permissions and topic rules.
"""
