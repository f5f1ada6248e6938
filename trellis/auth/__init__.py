"""Authentication: passwords, tokens, plugins, login throttling and publish rates.

A login passes through a chain of authenticators, which server/node.py makes from the settings:

    front end --> TokenAuthenticator --> PluginAuthenticator --> Accounts --> verdict
                  tokens/                amqtt_plugins.py        authenticate.py

Reading order: authenticate (users and passwords), login_throttle, passwords, settings_users,
private_files, tokens, amqtt_plugins, amqtt_loading. The module rates does not concern logins: it
limits how fast clients may publish. docs/architecture.md ("Walk: a login") follows a login from the
client's packet to the answer.
"""
