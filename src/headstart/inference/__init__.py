"""A trained model at work: loaded from its run directory, then used to classify, embed, translate or generate."""
