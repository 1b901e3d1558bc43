"""The figures of an epoch.

`telemetry` adds up what the epoch's loaders did, `reads` how often each record of a job was read,
`summary` makes the log line and the advice of these figures.
"""
