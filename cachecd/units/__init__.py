"""Turns a source into units: lists its objects, and divides them into units.

source_units  lists the units of a source, depending on its format; the interface `Lister`
unit_store    a store that lists units: applies patterns, or reads a table instead of the store's listing
unit_table    a table of units (`source.manifest`)
s3_inventory  the tables of an S3 Inventory
label_table   a table of labels (`source.label.manifest`)
tables        rows of CSV, JSON lines and Parquet
selection     the units that a dataset takes: one side of a split, and this node's part; pure
first_look    checks each source before the daemon writes to the disk
lister        the process that lists sources which need user code, a decoding library or a long table
"""
