"""What turns a source into units: which objects are listed, and which parts of them are units.

source_units  the units of a source, by format; the interface of whatever lists them
unit_store    a source's store as its units: patterns, and tables in place of the store's listing
unit_table    a table of units (`source.manifest`); s3_inventory: the tables of an S3 Inventory
label_table   a table of labels (`source.label.manifest`); tables: rows of CSV, JSON lines and Parquet
selection     which units a dataset takes: its side of a split, and this node's part; pure
first_look    checks each source before anything is made on disk
lister        the process that lists sources which need user code, a decoding library or a long table
"""
