"""Files under cache.dir.

filesystem  the file system itself: whether it may be used, how full it is
"""
