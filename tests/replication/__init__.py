"""Tests of replication: the records of the log, the judge, and simulations of whole clusters.

The judge is the code that decides for each record whether the record is valid.
"""
