"""The bench of topic matching, `trellis bench matching`: every algorithm and its peers on the same
patterns and topics.

Theory of operation. A *contender* is a program that reads requests, a JSON object a line, and
answers each with another: an algorithm of `matching/` (run by `step`), or a peer in any language
that keeps the same protocol. A *case* is a request with the files it names: patterns, topics, and
patterns to subscribe meanwhile. Cases of one size make a
*batch*. For each batch, each round, each contender in turn (another one first each time) a process
is started, does the batch's cases, and ends: so a mood of the machine meets all of them, nobody
inherits another's memory, and what is compared are medians over rounds. What a contender finds is
compared with what `naive` and `trie` find before it is timed; one that is wrong has no figure.

    cases --> rounds --> contenders ==pipe==> step: measure, memory, concurrency, churn, splitting
    workloads     |                  or a peer
               results --> report

Read in this order: workloads, cases, answers, measure, memory, concurrency, churn, splitting, step,
contenders, results, rounds, report. The protocol is described in `step`.
"""
