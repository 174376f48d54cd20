"""Files on disk: atomic writing, packs and shards, tables, records, splits and parallel reading."""
