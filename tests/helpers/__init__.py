"""What the tests share: tiny models, synthetic datasets, several processes, toy decoders."""
