"""Monitoring: metrics for Prometheus and listings for operators."""
