"""Turns the figures of `trellis bench matching` into the tables and charts of docs/matching.md.

`articles` has the figures that are printed in the articles, `targets` compares figures with the
targets, `charts` selects the data of charts (`benchmarks/peers/chart.py` draws them), and `page`
makes the tables. `benchmarks/matching/report.py` writes all into the document.
"""
