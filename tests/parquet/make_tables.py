#!/usr/bin/env python3
"""Makes files/NAME.parquet and files/NAME-KIND.parquet by pyarrow, and files/NAME.jsonl, the rows that they hold: make_tables.py

`pip install pyarrow` (made with 26.0.1).
"""
import datetime
import decimal
import json
import math
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

FILES = Path(__file__).parent / "files"
ODD = ["", "plain", 'quoted "text" and \\ back', "line\nbreak\ttab\x01\x1f", "Grüße, 数学 🎭", "x" * 300, None]


def flat(rows):
    """Rows of many pages: texts, some of them often, and numbers of all sizes."""
    draw = random.Random(3)
    return [{"text": draw.choice(ODD) if draw.random() < 0.3 else f"document {i} " * draw.randrange(1, 6),
             "language": draw.choice(["en", "de", None]), "id": draw.randrange(-2**40, 2**40) if i % 5 else None,
             "small": i % 7 - 3, "score": draw.choice([0.5, -1.25, 3.0, math.nan]), "half": i / 4,
             "good": draw.choice([True, False, None])} for i in range(rows)]


FLAT = pa.schema([("text", pa.string()), ("language", pa.string()), ("id", pa.int64()), ("small", pa.int32()),
                  ("score", pa.float64()), ("half", pa.float32()), pa.field("good", pa.bool_())])

CHATS = [
    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello 🎭", "weight": 1}]},
    {"messages": []},
    {"messages": None},
    {"messages": [{"role": "user", "content": None}], "grid": [[1, 2], [], None, [3]]},
    {"messages": [None, {"role": "system", "content": ""}], "grid": []},
    {"messages": [{"role": "user", "content": "again"}] * 3, "grid": [[]], "meta": {"source": "a", "deep": {"n": 7}}},
    {"meta": {"source": None, "deep": None}, "tags": [("k", 1), ("l", None)]},
    {"image": b"\xff\x00\x80", "day": datetime.date(1970, 1, 3), "price": decimal.Decimal("1.25"),
     "when": datetime.datetime(2001, 2, 3)},
]
CHAT_SCHEMA = pa.schema([
    ("messages", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string()), ("weight", pa.int64())]))),
    ("grid", pa.list_(pa.list_(pa.int32()))),
    ("meta", pa.struct([("source", pa.string()), ("deep", pa.struct([("n", pa.int64())]))])),
    ("tags", pa.map_(pa.string(), pa.int64())),
    ("image", pa.binary()), ("day", pa.date32()), ("price", pa.decimal128(38, 2)), ("when", pa.timestamp("ns"))])


def expected(value):
    """What a row becomes: days since 1970; null for bytes, decimals, times in the old type and NaN."""
    if isinstance(value, dict):
        return {key: expected(one) for key, one in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return {"key_value": [{"key": key, "value": one} for key, one in value]}
    if isinstance(value, list):
        return [expected(one) for one in value]
    if isinstance(value, datetime.datetime) or isinstance(value, (bytes, decimal.Decimal)):
        return None
    if isinstance(value, datetime.date):
        return (value - datetime.date(1970, 1, 1)).days
    return None if isinstance(value, float) and math.isnan(value) else value


def write(name, rows, schema, **options):
    table = pa.Table.from_pylist(rows, schema=schema)
    pq.write_table(table, FILES / f"{name}.parquet", **options)
    with open(FILES / f"{name.split('-')[0]}.jsonl", "w", encoding="utf-8") as out:
        for row in table.to_pylist():
            out.write(json.dumps(expected(row), ensure_ascii=False) + "\n")


def main():
    FILES.mkdir(exist_ok=True)
    pages = {"data_page_size": 512, "row_group_size": 90, "write_batch_size": 16}
    for codec in "none", "snappy", "gzip", "zstd":
        write(f"flat-{codec}", flat(200), FLAT, compression=codec, **pages)
    write("flat-second", flat(200), FLAT, compression="snappy", data_page_version="2.0", **pages)
    write("flat-differences", flat(200), FLAT, compression="zstd", data_page_version="2.0", use_dictionary=False,
          column_encoding={"text": "DELTA_LENGTH_BYTE_ARRAY", "language": "DELTA_BYTE_ARRAY",
                           "id": "DELTA_BINARY_PACKED", "small": "DELTA_BINARY_PACKED", "score": "PLAIN",
                           "half": "PLAIN", "good": "RLE"}, **pages)
    for version in "1.0", "2.0":
        write(f"chats-{version[0]}", CHATS, CHAT_SCHEMA, data_page_version=version, compression="zstd",
              use_deprecated_int96_timestamps=True, row_group_size=3)
    for version in "1.0", "2.0":
        write(f"sums-{version[0]}", flat(30), FLAT, data_page_version=version, compression="none", write_page_checksum=True,
              write_statistics=False)
    write("empty", [], FLAT)
    write("lz4", [{"text": "a" * 50}], pa.schema([("text", pa.string())]), compression="lz4")
    write("nulls", [{"text": "a", "none": None}] * 3, pa.schema([("text", pa.string()), ("none", pa.string())]),
          compression="gzip")
    draw = random.Random(4)  # differences beyond 32 bits
    write("integers", [{"n": draw.randrange(-2**31, 2**31)} for _ in range(300)], pa.schema([("n", pa.int32())]),
          use_dictionary=False, column_encoding={"n": "DELTA_BINARY_PACKED"})
    write("split", [{"score": 0.5}], pa.schema([("score", pa.float64())]), use_dictionary=False,
          column_encoding={"score": "BYTE_STREAM_SPLIT"})


if __name__ == "__main__":
    main()
