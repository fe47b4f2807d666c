"""What is measured of this package, by public names alone: it runs with the package of any commit."""
