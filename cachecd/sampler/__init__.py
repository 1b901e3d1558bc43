"""What runs inside a sampler process: fetch -> decode -> transform -> write.

__main__    the process: frames on stdin and stdout, its end
guard       ends what it has started with it
worker      one assignment at a time, from units to a sealed shard
ahead       fetches the next units while the present one is worked on
draft       the shard being written
fetch       bytes from a store; stores/ has one kind a file
sources/    one format a file
transforms/ the ready-made steps, and the user's
"""
