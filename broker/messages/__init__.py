"""Messages: what is published, where output collects, and how copies end."""
