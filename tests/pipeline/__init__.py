"""The data pipeline on Spark (docs/pipeline.md)."""
