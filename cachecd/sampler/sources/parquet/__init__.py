"""Format `parquet`: units are row groups (listing.py), rows are records (rows.py).

Footers are read by footer.py, in Python: it is what a daemon does with objects that nobody has looked
into yet, and pyarrow's way of looking at column chunks ends the process where one is inconsistent (an
exception of C++ that Cython was not told of). Only rows.py, columns.py and features.py import pyarrow.
"""
