"""Tests of the archive of streams: its files, streams that use the archive, and killed brokers."""
