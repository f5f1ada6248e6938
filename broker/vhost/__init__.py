"""Virtual hosts: declarations, bindings, publishing, retained messages and dead letters.

Reading order: vhost, declarations, bindings, background (work in slices), dead_letters (dead
letters, delayed messages and wills), retained, totals.
"""
