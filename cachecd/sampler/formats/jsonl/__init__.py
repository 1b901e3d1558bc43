"""Format `jsonl`: objects that are files of JSON objects, one a line.

An object is cut into units by ranges (lines.py), and a line is parsed by itself (values.py).
"""
