"""cachecd keeps training data from object storage as TFRecord shards in a local, growing cache."""
