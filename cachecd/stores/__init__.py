"""Bytes and names of remote stores, with patience and blame.

fetch       a store whose reads are retried where that helps, and that knows whom to blame
patience    which failure is retried, when, and how often; pure
gate        how many requests may be under way
lanes       which part of a listing is requested next; pure. sweep: the requests
backend     what each kind of store does: s3, cloud, urls, web, local, filesystem
answers     what an answer means: the object's fault, the store's, or one that passes
credentials keys that are renewed before they expire
"""
