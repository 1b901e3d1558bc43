"""The figures of an epoch.

`reads` counts how often a job reads each record, `summary` makes the log line and the advice.
"""
