"""The trainer's side of one lease.

`held_lease` locks the manifest. `leased_set` has the files that the manifest names, their schema and seed,
and reports corrupt records to the daemon.
"""
