"""Lines that are no good requests, by what is wrong with them, each with the code it is answered with.

Owns the list of scenario F8. Must not know who sends them. All are to be refused where a job `a` is RUNNING.
"""

from __future__ import annotations

DEEP = 100_000

LINES: dict[str, tuple[str, bytes]] = {
    # truncated, and what is not one JSON object
    "a create without its end": ("bad_json", b'{"op":"create","job":{"uuid":"b"'),
    "a delete without its end": ("bad_json", b'{"op":"delete","jobId":"a"'),
    "one brace too many": ("bad_json", b'{"op":"delete","jobId":"a"}}'),
    "a comma too many": ("bad_json", b'{"op":"delete","jobId":"a",}'),
    "single quotes": ("bad_json", b"{'op':'delete','jobId':'a'}"),
    "a comment": ("bad_json", b'{"op":"delete","jobId":"a"/**/}'),
    "two objects on a line": ("bad_json", b'{"op":"delete","jobId":"a"}{"op":"delete","jobId":"a"}'),
    "two objects with a space between": ("bad_json", b'{"op":"delete","jobId":"a"} {"op":"ping"}'),
    "a list of requests": ("bad_json", b'[{"op":"delete","jobId":"a"}]'),
    "a string": ("bad_json", b'"delete"'),
    "a number": ("bad_json", b"5"),
    "null": ("bad_json", b"null"),
    "an empty line": ("bad_json", b""),
    "spaces": ("bad_json", b"   "),
    "a NUL": ("bad_json", b"\x00"),
    "a NUL behind the object": ("bad_json", b'{"op":"delete","jobId":"a"}\x00'),
    "a byte order mark": ("bad_json", b'\xef\xbb\xbf{"op":"delete","jobId":"a"}'),
    # not UTF-8, and lone surrogates
    "bytes that are no text": ("bad_json", b"\xff\xfe\xfd"),
    "a value that is not UTF-8": ("bad_json", b'{"op":"update","jobId":"a","job":{"x":"\xff"}}'),
    "a key that is not UTF-8": ("bad_json", b'{"op":"update","jobId":"a","job":{"\xc3":1}}'),
    "a surrogate in UTF-8": ("bad_json", b'{"op":"update","jobId":"a","job":{"x":"\xed\xa0\x80"}}'),
    "a lone surrogate": ("bad_json", b'{"op":"update","jobId":"a","job":{"x":"\\ud800"}}'),
    "surrogates the wrong way round": ("bad_json", b'{"op":"update","jobId":"a","job":{"x":"\\udfff\\ud800"}}'),
    "a lone surrogate in an id": ("bad_json", b'{"op":"get","jobId":"\\ud800"}'),
    # numbers
    "NaN": ("bad_json", b'{"op":"update","jobId":"a","job":{"x":NaN}}'),
    "-Infinity": ("bad_json", b'{"op":"update","jobId":"a","job":{"x":-Infinity}}'),
    "a float beyond all bounds": ("bad_json", b'{"op":"update","jobId":"a","job":{"x":1e999}}'),
    "an integer of 100,000 digits": ("bad_json", b'{"op":"update","jobId":"a","job":{"x":' + b"9" * 100_000 + b"}}"),
    "a revision beyond 64 bits": ("bad_request", b'{"op":"delete","jobId":"a","ifRevision":99999999999999999999}'),
    "a seq beyond 64 bits": ("bad_request", b'{"op":"delete","jobId":"a","seq":99999999999999999999}'),
    # depth
    "100,000 levels": ("bad_json", b'{"op":"update","jobId":"a","job":{"x":' + b"[" * DEEP + b"]" * DEEP + b"}}"),
    "100,000 levels without an end": ("bad_json", b'{"op":"update","jobId":"a","job":{"x":' + b"[" * DEEP),
    "100,000 objects": ("bad_json", b'{"a":' * DEEP),
    # keys and ids
    "a key given twice": ("bad_request", b'{"op":"delete","jobId":"b","jobId":"a"}'),
    "a key given twice, with a space": ("bad_request", b'{"op" :"delete","jobId":"b","jobId":"a"}'),
    "a key given twice, once in hex": ("bad_request", b'{"op":"delete","jobId":"b","\\u006aobId":"a"}'),
    "an op given twice": ("bad_request", b'{"op":"get","op":"delete","jobId":"a"}'),
    "an unknown key given twice": ("bad_request", b'{"op":"delete","jobId":"a","colour":1,"colour":1}'),
    "a field given twice": ("bad_request", b'{"op":"update","jobId":"a","job":{"x":1,"x":1}}'),
    "a field of a field given twice": ("bad_request", b'{"op":"update","jobId":"a","job":{"x":[{"y":":","y":":"}]}}'),
    "a key in two spellings": ("bad_request", b'{"op":"delete","jobId":"a","JobID":"b"}'),
    "a key in two spellings inside a transaction": (
        "bad_request",
        b'{"op":"txn","ops":[{"op":"delete","JobId":"b","jobId":"a"}]}',
    ),
    "a field in two spellings": (
        "bad_request",
        b'{"op":"update","jobId":"a","job":{"Status":"FAILED","status":"FAILED"}}',
    ),
    "a scope without a name": ("bad_request", b'{"op":"sync","jobs":[{"uuid":"a"}],"scope":{"nodeId":""}}'),
    "two ids": ("bad_request", b'{"op":"delete","jobId":"b","id":"a"}'),
    "a NUL in an id": ("bad_request", b'{"op":"delete","jobId":"a\\u0000"}'),
    "a NUL in a new id": ("bad_request", b'{"op":"create","job":{"uuid":"a\\u0000b"}}'),
    "an id that is too long": ("bad_request", b'{"op":"create","job":{"uuid":"' + b"x" * 257 + b'"}}'),
    # wrong types
    "an id that is a list": ("bad_request", b'{"op":"delete","jobId":["a"]}'),
    "an id that is an object": ("bad_request", b'{"op":"delete","jobId":{"a":1}}'),
    "an id that is a number": ("bad_request", b'{"op":"delete","jobId":1}'),
    "an id that is true": ("bad_request", b'{"op":"delete","jobId":true}'),
    "a revision that is a text": ("bad_request", b'{"op":"delete","jobId":"a","ifRevision":"1"}'),
    "a record that is a list": ("bad_request", b'{"op":"update","jobId":"a","job":[]}'),
    "a status that is an object": ("bad_request", b'{"op":"update","jobId":"a","job":{"status":{}}}'),
    "a node that is a number": ("bad_request", b'{"op":"update","jobId":"a","job":{"nodeId":1}}'),
    "labels that are a list": ("bad_request", b'{"op":"update","jobId":"a","job":{"labels":[]}}'),
    "a priority that is true": ("bad_request", b'{"op":"update","jobId":"a","job":{"priority":true}}'),
    "a time that is none": ("bad_request", b'{"op":"update","jobId":"a","job":{"scheduledAt":"soon"}}'),
    "an increment by null": ("bad_request", b'{"op":"update","jobId":"a","inc":{"x":null}}'),
    "an increment by true": ("bad_request", b'{"op":"update","jobId":"a","inc":{"x":true}}'),
    "an object to append": ("bad_request", b'{"op":"update","jobId":"a","append":{"x":{}}}'),
    "a kind with a mark in it": ("bad_request", b'{"op":"update","jobId":"a","kind":"JOB!","job":{}}'),
    "a sync of null": ("bad_request", b'{"op":"sync","jobs":[null]}'),
    "a sync that is good in part": ("bad_request", b'{"op":"sync","jobs":[{"uuid":"a","x":1},null]}'),
    "a sync of a text": ("bad_request", b'{"op":"sync","jobs":"a"}'),
    "a transaction of a number": ("bad_request", b'{"op":"txn","ops":1}'),
    "a transaction of true": ("bad_request", b'{"op":"txn","ops":true}'),
    "a transaction of an object": ("bad_request", b'{"op":"txn","ops":{"op":"delete","jobId":"a"}}'),
    "a transaction that is good in part": ("bad_request", b'{"op":"txn","ops":[{"op":"delete","jobId":"a"},1]}'),
    "a request id that is an object": ("bad_request", b'{"op":"delete","jobId":"a","requestId":{}}'),
    "a long value where few are known": ("bad_request", b'{"op":"sync","jobs":[],"mode":"' + b"x" * 100_000 + b'"}'),
    "an op that is a list": ("bad_request", b'{"op":["delete"],"jobId":"a"}'),
    "an op that is null": ("bad_request", b'{"op":null,"jobId":"a"}'),
    # ops that are none
    "an op in capitals": ("unknown_op", b'{"op":"DELETE","jobId":"a"}'),
    "a NUL in an op": ("unknown_op", b'{"op":"delete\\u0000","jobId":"a"}'),
    "no op": ("unknown_op", b'{"jobId":"a"}'),
    "nothing at all": ("unknown_op", b"{}"),
}
