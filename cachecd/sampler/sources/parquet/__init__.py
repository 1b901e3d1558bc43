"""Format `parquet`: units are row groups, rows are records (rows.py). pyarrow decodes.

footer.py fetches and checks a file's footer, columns.py and features.py map its types to ours. Only sampler
and lister processes import this package: they may die of what a file makes pyarrow do.
"""
