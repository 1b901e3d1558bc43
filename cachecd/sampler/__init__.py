"""Inside a worker process: fetch -> decode -> transform -> write. The process may die at any time.

__main__      the process: frames on stdin and stdout (messages), its end (child)
worker        works on its streams in turn
worker_stream one stream; filling: which record comes next; supply, read_ahead: bytes before they are needed
draft         the shard that is being written
opening       the store of a source, with its table of units or labels, its patterns
origin        a source in a worker: store, format, and the records of one unit
sources/      one format a file
transforms/   the ready-made steps, and the user's
lister        lists the sources that need user code or a table (manifest, labels, tables, units)
reader        the base class of a user's source
"""
