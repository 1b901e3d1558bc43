"""The daemon: it carries out the commands of the policy, and reports each result as an event.

service          runs the daemon as a process: start, signals, reload, drain
ownership        ensures that one daemon owns cache.dir and the socket
notify           reports the state to the service manager
trainer          runs the trainer of `cachecd run ... -- TRAINER`
trainers         reads the reports of trainers, and knows what each process waited for
workers          makes the executor and the lister, with their processes
server           turns frames of the socket into requests, and replies into frames
requests         turns requests into events of the policy, and replies of the policy into messages
status           makes the status document
monitoring       gives the status document to history and HTTP
story            records what happened to each shard and lease
ingest           adds up bytes, seconds by stage, and pauses (pauses: their reasons)
timeline         keeps the last spans of all processes
progress_log     logs the progress of first listings and first fills
loop             runs one cache.dir with its policy; the only module that connects the rooms
start            opens cache.dir, and reports its content
measurement      measures small and foreign files, and the free space
rules            turns the configuration into rules of the policy, and checks the limit
command_runner   runs each command of the policy in its thread
disk_work        carries out the commands about files; blocks
worker_streams   sends units and grants to streams, and turns their reports into events
refetch          fetches missing records, and records of damaged shards
cached_records   finds the listed records that no live shard has
listings         lists the source of each generation repeatedly
failures         logs failures when they begin, last and end
background       holds the tasks that nobody awaits
directory_check  checks that nobody replaced cache.dir
"""
