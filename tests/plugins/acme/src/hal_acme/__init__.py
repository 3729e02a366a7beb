"""The hal backend of a fake vendor: the template of a vendor's plugin."""
