"""`cachecd demo`: the main use of cachecd, small and complete, on one machine.

experiment      puts the parts below together, and runs them
images          the training data: scanned digits as PNG files in a folder
configuration   the YAML of the demo's daemon
trainer         the small model, in NumPy
passes          an epoch's passes over its set, and how long the loop waited
disk_watch      the disk usage of the cache, measured from outside
report          one row for each epoch, for people or for programs
interruption    Ctrl-C and SIGTERM end the demo through every cleanup, once
"""
