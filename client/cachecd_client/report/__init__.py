"""The figures of an epoch.

`reads` counts how often each record of a job was read, `summary` makes the log line and the advice.
"""
