"""Finds likely mistakes in settings, code and deployment. Runs at the start and where a decorator is applied."""
