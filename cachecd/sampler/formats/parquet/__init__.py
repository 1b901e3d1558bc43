"""Format `parquet`: units are row groups, rows are records (rows.py). pyarrow decodes.

footer.py fetches and checks a file's footer, columns.py and features.py map Parquet types to features. Only
sampler and lister processes import this package, because a file may make pyarrow crash its process.
"""
