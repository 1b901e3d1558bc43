"""One lease, as the trainer holds it.

`held_lease` is the lock on the manifest. `leased_set` has the files that the manifest names, their schema
and seed, and reports corrupt records to the daemon.
"""
