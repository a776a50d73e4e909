"""Published numbers beside measured ones: what a store replicates, what deviates, what would still have to run."""
