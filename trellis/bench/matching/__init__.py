"""`trellis bench matching`: measures topic matching algorithms and peers on the same data.

A *contender* is a program that reads requests, one JSON object per line, and answers each with
another one. It is an algorithm of `matching/`, run by `step`, or a peer: a program in any language
with the same protocol. A *case* is a request with its files: patterns, topics, and further patterns
to subscribe during the measurement. Cases of one size make a *batch*.

In each round, each contender does the cases of a batch in a process of its own, and the first
contender changes from round to round. So noise of the machine affects all contenders, no contender
runs in memory used by another one, and medians over the rounds are compared. Answers are compared
with those of `naive` and `trie` before they are timed; a contender with a wrong answer has no
figure.

    cases --> rounds --> contenders ==pipe==> step: measure, memory, concurrency, churn, splitting
    workloads     |                  or a peer
               results --> report

Read in this order: workloads, cases, answers, measure, memory, concurrency, churn, splitting, step,
contenders, results, rounds, report. The protocol is described in `step`.
"""
