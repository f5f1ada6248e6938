"""Tests of `trellis connect`, with real brokers, HTTP services and Kafka."""
