"""Tests of packaging/home-assistant: its files, its program, and clients as in Home Assistant."""
