"""The running broker: sockets, links, listeners, TLS, the loop turn and the store writer."""
