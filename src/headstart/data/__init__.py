"""Raw text to examples, tokens and batches; and the audit of them."""
