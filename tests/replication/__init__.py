"""Tests of replication: the records of the log, the judge, and simulations of whole clusters."""
