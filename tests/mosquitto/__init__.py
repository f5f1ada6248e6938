"""Tests of the import of a Mosquitto configuration."""
