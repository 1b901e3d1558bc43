"""`cachecd demo`: the main job, small and whole, on one machine with nothing else installed.

experiment          puts the parts below together, and runs it
images              what is learnt: scanned digits as PNG objects
store, s3_server    where they lie: a folder, or a bucket of a real S3 server
configuration       the YAML that the daemon is started with
trainers            the small model, once for each framework: trainer_numpy and its kin
passes              an epoch's passes over its set, and what the loop waited for
disk_watch          what the cache occupies, measured from outside
report              one row an epoch, for people or for programs
interruption        Ctrl-C and SIGTERM: out through every cleanup, once
"""
