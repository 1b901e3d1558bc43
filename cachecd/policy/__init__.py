"""Every decision of the daemon: events in, commands out. Pure: no disk, no clock, no randomness.

`Policy.handle(event, now)` is the only way in, the returned commands are the only way out. The daemon
reports the result of every command as an event (events.py). Reading order: events, shares, rotation,
shard_table, streams, generation, dataset, room, supplements, repair, acquire, granting,
policy. The sections of the design: 5 (a start), 6.4 to 6.9 (streams, supplements,
quarantine), 7 (shares, growth, rotation), 8 (leases).
"""
