"""Reads requests (client address, keys, paths) and builds the headers and bodies of responses."""
