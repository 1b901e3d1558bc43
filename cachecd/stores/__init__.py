"""Reads and lists remote stores, retries, and decides what is at fault for a failure.

fetch       a store with retries, which decides what is at fault
retry       which failures are retried, when, and how often; pure
gate        how many requests may be in flight
key_ranges  which part of a listing is requested next; pure. sweep: the requests
backend     the interface of each kind of store: s3, cloud, urls, web, local, filesystem
answers     the meaning of an HTTP error: the object's fault, the store's, or a failure that passes
credentials keys that are renewed before they expire
"""
