"""The daemon: it carries out the commands of the policy, and reports each result as an event.

service          the daemon as a process: starts, signals, reloads, the drain; with ownership (of
                 cache.dir and socket), notify (the service manager), trainer, and workers (the processes)
server           the socket: frames as requests, replies as frames
requests         requests as events of the policy, its replies as messages
status           the status document; story: what happened to a shard or a lease
loop             one cache.dir with its policy: the only wiring
start            opens cache.dir, and reports its content
rules            the configuration as rules of the policy, and whether the limit suffices
command_runner   runs every command in its thread, in the order that the policy needs
disk_work        the commands about files, one after the other; blocks
worker_streams   streams in workers: units, grants, `until`, and the workers' reports
refetch          damaged shards and supplements, made again from the source
cached_records   the listed records that no live shard holds
listings         the listing of each generation, kept current
failures         failures, each logged once
background       the tasks that nobody awaits
directory_check  whether cache.dir is still the same directory
"""
