"""Inside a worker process: fetch -> decode -> transform -> write. The process may die at any time.

__main__      runs the process: frames (messages) on stdin and stdout, protection and end (child)
worker        works on its streams in turn
worker_stream runs one stream; filling chooses the next record; supply and read_ahead fetch bytes early
draft         writes a shard; encoding: schema and serialized records
origin        opens a source: its store and its format; counts the fetched bytes
meter         measures stages, waits and spans of the process
formats/      one file for each format
transforms/   the ready-made steps, and steps of the user
user_reader   calls the user's class of format `python`; view: the store for user code
"""
