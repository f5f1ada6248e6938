"""Tests of packaging/helm: values, rendered objects, and brokers with the rendered settings."""
