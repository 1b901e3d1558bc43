"""`cachecd demo`: the main job, small and whole, on one machine with nothing else installed.

experiment      puts the parts below together, and runs them
images          what is learnt: scanned digits as PNG files in a folder
configuration   the YAML that the daemon is started with
trainer         the small model, in NumPy
passes          an epoch's passes over its set, and what the loop waited for
disk_watch      what the cache occupies, measured from outside
report          one row an epoch, for people or for programs
interruption    Ctrl-C and SIGTERM: out through every cleanup, once
"""
