"""TFRecord files without a daemon: `FileSet`.

`locate` finds the offsets of the records and their schema, `inflate` reads compressed streams.
"""
