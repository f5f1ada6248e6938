"""Access control: identities, permissions, topic rules and users."""
