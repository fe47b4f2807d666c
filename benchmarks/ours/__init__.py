"""Contenders of this package. They use public names alone, so that they run with the package of any commit."""
