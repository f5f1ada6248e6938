"""Tests of the archive of streams: files, streams that use it, brokers, and kills."""
