"""Tests of the data pipeline on Spark (docs/pipeline.md)."""
