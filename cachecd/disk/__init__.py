"""Files under cache.dir: their paths, their durability, and their inventory at a start.

layout      the tree; no other module joins its paths
durable     small durable files: state.json, egress.json; generation_file: generation.json
excluded    excluded.jsonl: the keys that a person excluded
sidecar     reads sidecars
leases      manifests of leases, and who holds them
publish     publishes, marks, copies and unlinks shards
snapshot    the shard table as it was in memory: makes a start quick
inventory   takes the inventory of a generation's directory
filesystem  the file system itself: whether it may be used, how full it is
"""
