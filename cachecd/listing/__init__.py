"""The listing of a source: its units by number, their blocks, and their order within a block.

source_pages  pages of units from a lister, over several attempts
table         listing.sqlite: units and ends of blocks; the only SQL
table_update  updates a table from the pages of a lister
permutation   the order of the units in a block, the same in every pass
pages         the units of a stream, in pages
classes       the numbers of class names, append-only

The daemon runs a table in a thread, reserves space for it under the limit, and retries listings.
"""
