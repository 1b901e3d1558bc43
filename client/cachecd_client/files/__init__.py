"""TFRecord files without a daemon: `FileSet`.

`locate` finds the records of each file, `inference` their schema, `inflate` reads compressed streams.
"""
