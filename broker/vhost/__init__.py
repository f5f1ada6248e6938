"""Virtual hosts: declarations, bindings, publishing, retained messages and dead letters.

Reading order: vhost, publishing, declarations, bindings, background (work in slices), dead_letters
(dead letters, delayed messages and wills), retained, totals, depth_totals. For operators:
applied_policies, parameters, options, message_move (moves messages to another queue) and
move_survey.
"""
