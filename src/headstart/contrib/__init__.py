"""Builders of datasets from sources on the web; nothing else in the package needs them."""
