"""Inside a worker process: fetch -> decode -> transform -> write. The process may die at any time.

__main__      the process: frames on stdin and stdout (messages), its end (child)
worker        works on its streams in turn
worker_stream one stream; filling: which record comes next; supply, read_ahead: bytes before they are needed
draft         the shard that is being written
origin        a source in a worker: its store, its format, and the bytes that were fetched
formats/      one format a file
transforms/   the ready-made steps, and the user's
user_reader   the user's class of format `python`; view: the store for user code
"""
