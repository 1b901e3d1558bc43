"""Reads and lists remote stores, retries failed requests, and decides what caused a failure.

fetch       a store with retries; decides whether the object or the store is at fault
retry       which failures are retried, when, and how often; pure
gate        how many requests may be in flight
key_ranges  which part of a listing is requested next; pure. sweep: the requests
backend     the interface of each kind of store: s3, cloud, listed_urls, web, local, filesystem
answers     turns an HTTP error into an error: of the object, of the store, or one to retry
credentials keys that are renewed before they expire
"""
