"""A Debian system that systemd boots, in namespaces of its own, for the tests of the service."""
