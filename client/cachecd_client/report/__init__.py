"""The figures of an epoch, and the reports of a process to the daemon.

`reads` counts how often a job reads each record, `summary` makes the log line and the advice. `datagram`
sends reports and warns, `last_minute` adds up what they say of the last minute.
"""
