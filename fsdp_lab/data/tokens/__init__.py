"""From documents to a cache of token shards, and from the shards back to tokens. Read `tokenization` first."""
