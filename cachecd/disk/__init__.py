"""Files under cache.dir: where they lie, and how they become durable.

layout      the tree; no other module joins its paths
identity    the name of a generation's directory, and generation.json
durable     small durable files: state.json, egress.json
excluded    excluded.jsonl: what a person took out
snapshot    the shard table as it was in memory
filesystem  the file system itself: whether it may be used, how full it is
"""
