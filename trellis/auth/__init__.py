"""Authentication: passwords, tokens, plugins, login throttling and publish rates."""
