"""TFRecord files without a daemon: `FileSet`.

`locate` finds the records of each file and their schema, `inflate` reads compressed streams.
"""
