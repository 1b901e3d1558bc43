"""`cachecd demo`: the main use of cachecd, small and complete, on one machine.

experiment      connects the parts below, and runs them
images          the training data: scanned digits as PNG files in a folder
configuration   the YAML of the demo's daemon
trainer         the small model, in NumPy
passes          times the passes of an epoch over its set
disk_watch      measures the disk usage of the cache from outside
report          one row for each epoch, for people or for programs
interruption    runs every cleanup once after Ctrl-C or SIGTERM
"""
