"""What pyarrow writes for a segment's schema and record batches.

Made by tools/arrow_template.py: do not edit.
"""

from __future__ import annotations

import base64
import zlib
from typing import Final

from mypy_extensions import i64

#: Where numbers stand in the octets of a record batch, and names in those of the schema.
BODY: Final[i64] = 48
LENGTH: Final[i64] = 136
NODES: Final[i64] = 1328
NODES_COUNT: Final[i64] = 27
BUFFERS: Final[i64] = 152
BUFFERS_COUNT: Final[i64] = 73
SUM: Final[i64] = 92
SCHEMA_STREAM: Final[i64] = 216
SCHEMA_EPOCH: Final[i64] = 156
SCHEMA_BASE: Final[i64] = 96
#: Names of the columns, in their order.
COLUMNS: Final = (
    "offset",
    "published_at",
    "vhost",
    "exchange",
    "topic",
    "protocol",
    "qos",
    "publisher",
    "routed",
    "size",
    "content_type",
    "content_encoding",
    "delivery_mode",
    "priority",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "timestamp",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
    "headers",
    "content_header",
    "routing_key",
    "body",
)

SCHEMA: Final = zlib.decompress(
    base64.b64decode(
        "eNp9lCFwE0EUhl9KkoYSOhGIzlCBiKhgmBYQCERnQEREIGAGwUxyudsmNyTZ427TaRhERUVFZUUFChWBqEBUIBCVFRUMg0AgKxB4So//7W46S3Lpzvy5vZfvvdt97+2maZ"
        "oeFokqxGOBFqlIBSphhpHLX9rL+M1f2nludALtQE/tex3xqnZ+C3qQMTgEx1Ox6HbD5F7LSwTbdid872cM5m46viKSfgfvxxO+axmDfRcd3wQTr0fYVVnvrUQmD3mzRVqb"
        "4Ddk3PMU0W3YagWiXwA/Q3tQE1qFzq8hJ9ABFECr0Nkc0SH0DqpBS9AZPnAEKagGLUO/EfcLtA81oVW7lod/0pSnvLYlayP7bMlgyPMRmPpf5nKaW3a4G1AsByrstxuvxZ"
        "C+gt11Yt5xWN6vL/tK9FWjI7xAxPjvPE1HJnZhcg3zkOESugvu1OHcNXDf+N1BokTcCAOil2DPZ8REO5IXRZrbBle9mP3tQWICjsDVZ3D8VMNI99gpOGW4BeaqDnedubAn"
        "EuX1IiLbEXn7S4RS0ovnT+jTxew9wjvx2kKv/TH29/MKVmxFYeypUPaRQ7DlNJvl78ci6g4bSvL7PthHDjtdvxgdqwPrdRyD7xh+Lit2FIcyDpXuow9YL9sOHN6Nz2cvEN"
        "1wU8TDRk8GnNRv1ufEWZOb14rTU6LvywCNyPZX8KvgtJZQ8Xl9I1TsfTO9r7ITY1zL9/B/pvNLc1k1T8K3mls3TG4dP9sz+KI9IwL5iizP3z8086macK9EgxauhQ4fEVrB"
        "3n84sV2W++aNTPRXSrAWbd5NvamQXROppC+7/L6TjutNU71d4J6VUejj+RFM84qYYsvveP22zsl3cHszWI652ZGJ0ra8th8ZVp+ZlYm6jPMQNPh2NPdp0Z4epOO/s2PqTR"
        "P1pqk+4xzJjY1EKBOvBA8Tz9TxH/50UKA="
    )
)

BATCH: Final = zlib.decompress(
    base64.b64decode(
        "eNr7/////xtsDAwSDDDAxyDDwMbAysDBIMDAA+QBATMLQwiQEmBABYxAzAPEHECSBUhyMEDMYQGLMTAYQAFILSsQJxclGxsxcAHVQNRzAcXWsGCa68kwCkbBKBgFgwtIjw"
        "bBkAMAkHoKqA=="
    )
)
