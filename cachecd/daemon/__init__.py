"""The daemon: it carries out the commands of the policy, and reports each result as an event.

identities  the configuration as identities of generations and as rules of the policy
manifest    the text of a lease's manifest
disk_work   the commands about files, one after the other; blocks
carrying    carries out every command in its thread, in the order that the policy needs
feeding     streams in workers: units, grants, `until`, and the workers' reports
remaking    damaged shards and supplements, made again from the source
missing     the listed records that no live shard holds
listings    the listing of each generation, kept current
loop        one cache.dir with its policy: the only wiring
start       opens cache.dir, and reports what it has
"""
