"""What stands between the gates and the frameworks: the parts that faces share, and those of one that is too long."""
