"""The listing of a source: its units by number, their blocks, and their order within a block.

source_pages pages of units from a lister, over several attempts
table        listing.sqlite: units and ends of blocks; the only SQL
table_update brings a table up to date from the pages of a lister
permutation  the order of a block's units, the same in every pass
pages        the units of a stream, page by page
classes      the numbers of class names, append-only

The daemon gives a table its thread, its room under the limit, and its retries.
"""
