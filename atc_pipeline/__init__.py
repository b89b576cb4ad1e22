"""An exported graph into a bundle: build, verify, inspect."""
