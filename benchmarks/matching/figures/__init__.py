"""What becomes of the figures of `trellis bench matching`: tables and charts in docs/matching.md.

`articles` has what the articles say, `targets` what was to be reached, `charts` the pictures, drawn
by `benchmarks/peers/chart.py`, `page` the tables; `benchmarks/matching/report.py` puts them into
the document.
"""
