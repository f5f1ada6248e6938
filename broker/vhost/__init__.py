"""Virtual hosts: declarations, bindings, retained messages, dead letters, background work."""
