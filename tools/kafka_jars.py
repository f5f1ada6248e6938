"""Write trellis/demo/kafka_jars.py: Kafka's files on Maven Central, with their SHA-256.

tests/cluster/kafka/pom.xml names the version of Kafka; Maven resolves and downloads the files.

    .venv/bin/python tools/kafka_jars.py
"""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
POM: Final = ROOT / "tests" / "cluster" / "kafka" / "pom.xml"
TARGET: Final = ROOT / "trellis" / "demo" / "kafka_jars.py"
_HEAD: Final = '''"""Kafka's files on Maven Central. Written by tools/kafka_jars.py."""

from __future__ import annotations

from typing import Final

#: The version of Kafka.
VERSION: Final = "{version}"
#: Total size of the files in bytes.
SIZE: Final = {size}
#: For each file its group, artifact and version, then its SHA-256.
FILES: Final = """\\
{files}"""
'''


def resolved(repository: Path) -> list[Path]:
    """Return the files that a Kafka node needs, downloaded by Maven into `repository`."""
    output = repository / "class-path"
    command = ["mvn", "-q", "-B", "-f", str(POM), f"-Dmaven.repo.local={repository}"]
    goal = ["dependency:build-classpath", f"-Dmdep.outputFile={output}", "-DincludeScope=runtime"]
    subprocess.run([*command, *goal], check=True)
    return sorted(Path(name) for name in output.read_text().strip().split(":"))


def coordinates(path: Path) -> str:
    """Return the group:artifact:version of a file; `path` begins with the folders of the group."""
    *group, artifact, version, _ = path.parts
    return f"{'.'.join(group)}:{artifact}:{version}"


def main() -> None:
    """Write trellis/demo/kafka_jars.py, the list of Kafka's files with their checksums."""
    with tempfile.TemporaryDirectory() as directory:
        repository = Path(directory)
        files = resolved(repository)
        names = [coordinates(path.relative_to(repository)) for path in files]
        digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]
        size = sum(path.stat().st_size for path in files)
    [version] = [name.split(":")[2] for name in names if name.startswith("org.apache.kafka:kafka_")]
    lines = "".join(f"{name}\n  {digest}\n" for name, digest in zip(names, digests, strict=True))
    TARGET.write_text(_HEAD.format(version=version, size=size, files=lines))


if __name__ == "__main__":
    main()
