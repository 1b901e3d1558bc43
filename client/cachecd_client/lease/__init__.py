"""One lease, as the trainer holds it.

`held_lease` is the lock on the manifest, `shard_files` the paths that the manifest names, `leased_set`
both of these with the schema, the seed and the reports to the daemon.
"""
