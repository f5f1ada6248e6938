"""`trellis bench matching`: measures topic matching algorithms and peers on the same data.

A *contender* is a program that reads requests, one JSON object per line, and answers each with a
line of JSON. A contender is an algorithm of `matching/`, run by `step`, or a peer: a program in any
language with the same protocol. A *case* is a request with its files: patterns, topics, and further
patterns to subscribe during the measurement. Cases with the same number of subscriptions make a
*batch*.

In each round, each contender does the cases of a batch in a process of its own, and each round
begins with another contender. So noise of the machine affects all contenders, no contender runs in
memory that another contender has used, and medians over the rounds are compared. Each contender's
answers are compared with the answers of `naive` and `trie`. A contender with a wrong answer has no
figure in that case.

    cases --> rounds --> contenders ==pipe==> step: measure, memory, concurrency, churn, splitting
    workloads     |                  or a peer
               results --> report

Read in this order: workloads, cases, answers, measure, memory, concurrency, churn, splitting, step,
contenders, results, rounds, report. The protocol is described in `step`.
"""
