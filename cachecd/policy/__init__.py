"""Makes every decision of the daemon: takes events, and returns commands. Pure: no disk, clock or
randomness.

`Policy.handle(event, now)` is the only way in, and the returned commands are the only way out. The daemon
reports the result of every command as an event (events.py). Reading order: events, shares, rotation,
shard_table, streams, generation, dataset, room, supplements, repair, acquire, granting, policy. The
sections of the design: 5 (a start), 6.4 to 6.9 (streams, supplements, quarantine), 7 (shares, growth,
rotation), 8 (leases).
"""
