"""The rules: lifecycle, patches, exactly-once, queries. No bytes, no SQL, no I/O; time and ids come in from above."""
