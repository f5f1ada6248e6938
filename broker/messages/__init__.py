"""Messages: a published message, the output buffer of a connection, the fates of copies."""
