"""Tests of the top floor: what waits, and what comes from outside."""
