"""Measures `trellis stream export`: size and row groups of its files, CPU time, peak of memory.

    python benchmarks/export.py [--rows N] [--trellis .run/bin/trellis] [--into docs/streams.md]

A broker gets two streams: `slow`, of 2,000 messages, each published after the confirm of the
previous message, so that each message is a separate batch; and `fast`, of --rows messages. Each
message has a different body, a JSON text of about 100 bytes, and one of 5,000 topics. The rows are
exported from the data directory and over HTTP, in each format. For comparison, the program writes
Parquet files with a row group for each batch of the stream. The Python that runs the program needs
pyarrow. Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import io
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pamqp.commands as spec
import pyarrow as pa
import pyarrow.parquet as pq
from amqp_socket import AmqpSocket, marshal
from peers.machine import machine
from peers.peer import ROOT
from peers.report import between

from trellis.cli.readable import count_text

SLOW: Final = 2_000
TOPICS: Final = 5_000
#: Messages of a transaction.
CHUNK: Final = 5_000
ACK, COMMITTED, DECLARED = b"\x00\x3c\x00\x50", b"\x00\x5a\x00\x15", b"\x00\x32\x00\x0b"
FORMATS: Final = ("parquet", "arrow", "arrows")
PART: Final = "export"
#: Runs the command in its arguments; prints the command's CPU seconds and peak of memory in KiB.
_RUN: Final = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime, used.ru_maxrss)
"""
Figures = dict[str, Any]


def messages(count: int) -> Iterator[bytes]:
    """Yield the frames of publications to amq.topic: persistent, with a content type and a time."""
    rng = random.Random(1)
    topics = [
        f"site{rng.randrange(60)}.line{rng.randrange(40)}.device{number}.temperature".encode()
        for number in range(TOPICS)
    ]
    flags = (1 << 15 | 1 << 12 | 1 << 6).to_bytes(2, "big")
    for number in range(count):
        topic = topics[rng.randrange(TOPICS)]
        body = (
            b'{"device": %d, "value": %.2f, "unit": "C", "state": "good", "at": %d, "number": %d}'
            % (rng.randrange(TOPICS), rng.gauss(21, 3), 1_760_000_000_000 + number * 37, number)
        )
        time = (1_760_000_000 + number // 100).to_bytes(8, "big")
        properties = b"\x10application/json\x02" + time
        yield frame(1, b"\0\x3c\0\x28\0\0\x09amq.topic%c%b\0" % (len(topic), topic))
        yield frame(2, b"\0\x3c\0\0" + len(body).to_bytes(8, "big") + flags + properties)
        yield frame(3, body)


def frame(kind: int, payload: bytes) -> bytes:
    """Return the bytes of a frame on channel 1."""
    return b"%c\0\x01%b%b\xce" % (kind, len(payload).to_bytes(4, "big"), payload)


async def publish(port: int, queue: str, count: int, slowly: bool) -> None:
    """Declare a stream; publish `count` messages, one by one if `slowly`, else in transactions."""
    client = await AmqpSocket.connect(port, 1)
    arguments: Any = {"x-queue-type": "stream"}
    client.write(marshal(1, spec.Queue.Declare(queue=queue, durable=True, arguments=arguments)))
    await client.wait_for(DECLARED, 1)
    client.write(marshal(1, spec.Queue.Bind(queue=queue, exchange="amq.topic", routing_key="#")))
    await client.wait_for(b"\x00\x32\x00\x15", 1)
    frames = messages(count)
    if slowly:
        client.write(marshal(1, spec.Confirm.Select()))
        await client.wait_for(b"\x00\x55\x00\x0b", 1)
        for _ in range(count):
            client.write(b"".join(next(frames) for _ in range(3)))
            await client.wait_for(ACK, 1)
    else:
        client.write(marshal(1, spec.Tx.Select()))
        await client.wait_for(b"\x00\x5a\x00\x0b", 1)
        for first in range(0, count, CHUNK):
            size = min(CHUNK, count - first)
            client.write(b"".join(next(frames) for _ in range(3 * size)))
            client.write(marshal(1, spec.Tx.Commit()))
            await client.wait_for(COMMITTED, 1)
    client.write(marshal(1, spec.Queue.Unbind(queue=queue, exchange="amq.topic", routing_key="#")))
    await client.wait_for(b"\x00\x32\x00\x33", 1)
    client.abort()


def export(trellis: Path, *words: str) -> Figures:
    """Run an export, and return its summary, its CPU seconds and its peak of memory in MiB."""
    command = [str(trellis), "stream", "export", *words, "--json"]
    # Between fork and exec, a process has the memory of its parent. So a small process starts the
    # command; otherwise the peak would include the memory of this program.
    done = subprocess.run(
        [sys.executable, "-c", _RUN, *command], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"export: `trellis stream export {' '.join(words)}` failed: {done.stderr}")
    answer, used = done.stdout.rstrip().rsplit("\n", 1)
    summary: Figures = json.loads(answer)
    seconds, peak = used.split()
    return summary | {"seconds": round(float(seconds), 2), "peak_mib": round(int(peak) / 1024)}


def batch_by_batch(directory: Path) -> Figures:
    """Write a Parquet file with a row group for each batch of a stream, and return its figures."""
    out = io.BytesIO()
    writer: Any = None
    for segment in sorted(directory.glob("*.arrow")):
        reader = pa.ipc.open_stream(segment.read_bytes())
        for batch in reader:
            if writer is None:
                writer = pq.ParquetWriter(out, reader.schema)
            writer.write_batch(batch)
    writer.close()
    groups = pq.ParquetFile(io.BytesIO(out.getvalue())).num_row_groups
    return {"groups": groups, "bytes": len(out.getvalue())}


def measure(trellis: Path, rows: int) -> Figures:
    """Publish the messages to a broker, and export them; return the figures."""
    with tempfile.TemporaryDirectory(prefix="trellis-export-") as scratch:
        data = Path(scratch) / "data"
        ports = [
            word
            for name in ("amqp", "mqtt", "http", "metrics")
            for word in (f"--{name}-port", "0", f"--{name}-host", "127.0.0.1")
        ]
        broker = subprocess.Popen(
            [str(trellis), "serve", "--config", os.devnull, "--data-dir", str(data), *ports],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            assert broker.stdout is not None
            ready = dict(word.split("=") for word in broker.stdout.readline().split()[1:])
            port = int(ready["amqp"].rpartition(":")[2])
            url = f"http://{ready['http']}"
            asyncio.run(publish(port, "slow", SLOW, True))
            asyncio.run(publish(port, "fast", rows, False))
            figures: Figures = {}
            for name in ("slow", "fast"):
                place = data / "streams" / "%2F" / name
                figures[f"{name} before"] = batch_by_batch(place)
                for kind in FORMATS:
                    for source, words in (
                        ("directory", ("--directory", str(data))),
                        ("http", ("--url", url)),
                    ):
                        file = Path(scratch) / f"{name}.{source}.{kind}"
                        figures[f"{name} {kind} {source}"] = export(
                            trellis, name, str(file), *words
                        )
                figures[f"{name} stream"] = {
                    "bytes": sum(file.stat().st_size for file in place.glob("*.arrow"))
                }
            file = Path(scratch) / "columns.parquet"
            figures["fast columns"] = export(
                trellis,
                *("fast", str(file), "--directory", str(data)),
                *("--columns", "topic,published_at,body", "--topic", "site1/#"),
            )
            return figures
        finally:
            broker.terminate()
            broker.wait()


def table(results: Figures) -> str:
    """Return the results as Markdown tables, for the page that --into names."""
    figures = results["figures"]
    facts = "; ".join(f"{name} {value}" for name, value in results["machine"].items())

    def size(name: str) -> str:
        return f"{figures[name]['bytes'] / 1e6:.2f} MB"

    lines = [
        f"Measured on {results['date']} with `{results['command']}`, {results['version']}.",
        f"Machine: {facts}.",
        "",
        "| stream | its segments | Parquet, a row group for each batch (before) | Parquet now |",
        "|---|---:|---:|---:|",
    ]
    for name, title in (
        ("slow", "each message in a batch of its own"),
        ("fast", "as fast as possible"),
    ):
        before, now = figures[f"{name} before"], figures[f"{name} parquet directory"]
        lines.append(
            f"| {now['rows']:,} messages, {title} | {size(f'{name} stream')} "
            f"| {size(f'{name} before')}, {before['groups']:,} row groups "
            f"| {size(f'{name} parquet directory')}, {count_text(now['groups'], 'row group')} |"
        )
    lines += [
        "",
        (
            "CPU time and peak of memory of an export of "
            f"{figures['fast parquet http']['rows']:,} rows:"
        ),
        "",
        "| format | size | from a directory | over HTTP |",
        "|---|---:|---:|---:|",
    ]
    for kind in FORMATS:
        cells = [
            f"{one['seconds']:.1f} s, {one['peak_mib']:,} MiB"
            for one in (figures[f"fast {kind} {source}"] for source in ("directory", "http"))
        ]
        lines.append(f"| {kind} | {size(f'fast {kind} http')} | {' | '.join(cells)} |")
    part = figures["fast columns"]
    lines.append(
        f"| parquet, 3 columns of {part['rows']:,} rows that match a filter "
        f"| {size('fast columns')} | {part['seconds']:.1f} s, {part['peak_mib']:,} MiB | |"
    )
    return "\n".join(lines)


def main() -> None:
    """Measure the exports, and write the results into the page that --into names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--trellis", type=Path, default=ROOT / ".run/bin/trellis")
    parser.add_argument("--into", type=Path, default=ROOT / "docs" / "streams.md")
    arguments = parser.parse_args()
    facts = subprocess.run(
        [str(arguments.trellis), "version", "--json"], capture_output=True, check=True
    ).stdout
    version = json.loads(facts)
    results = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": "python benchmarks/export.py",
        "version": f"Trellis {version['version']}, "
        f"{'compiled' if version['compiled'] else 'not compiled'}, on Python {version['python']} "
        f"and pyarrow {pa.__version__}",
        "machine": machine(),
        "figures": measure(arguments.trellis, arguments.rows),
    }
    text = table(results)
    print(text)
    document = arguments.into.read_text(encoding="utf-8")
    arguments.into.write_text(between(document, text, str(arguments.into), PART), encoding="utf-8")


if __name__ == "__main__":
    main()
