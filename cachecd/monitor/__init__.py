"""Renders the status document for people and for other programs.

Everything here takes the document as JSON. It computes differences between two documents, and formats
figures. A figure that is missing belongs into cachecd/daemon/status.py.
"""
