"""Files under cache.dir: their paths, how they are written durably, and their inventory at a start.

layout           the paths under cache.dir; no other module joins them
durable          reads and writes small files: state.json, egress.json, rotation.json
generation_file  reads and writes generation.json
excluded         excluded.jsonl: the keys that a person excluded
sidecar          reads sidecars
leases           manifests of leases, and the locks of their holders
publish          publishes, marks, copies and unlinks shards
snapshot         a copy of the shard table, so that a start need not read all sidecars
inventory        lists the shards and leftovers in a generation's directory
filesystem       the type, the free space and the inodes of the file system
"""
