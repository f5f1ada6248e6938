"""Summaries of the topics of full segments, made by a child process of the broker.

    event loop                                     a child process
    TopicSummaries  --directories of streams-->    summarize --> <segment>.topics

A summary lets readers skip segments in which no topic matches (docs/streams.md, "Summaries of
topics"). The child process reads each full segment once, with the lowest priority, so that the work
delays neither the event loop nor the writer's thread. The process ends after the last full segment
of the directories; the broker starts another process after more segments have become full.

    service       the broker's end: which directories have new full segments; starts the process
    summarizing   the work of the process

broker/stream/segment_topics.py writes the files, matching/topic_summary.py defines a summary.
"""
