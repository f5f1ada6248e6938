"""Turns the figures of `trellis bench matching` into the tables and charts of docs/matching.md.

`articles` has the figures printed in the articles, `targets` the targets, `charts` the charts
(drawn by `benchmarks/peers/chart.py`), `page` the tables; `benchmarks/matching/report.py` writes
them into the document.
"""
