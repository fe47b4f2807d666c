"""Management commands; Django finds them by the names of their modules."""
