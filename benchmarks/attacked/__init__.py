"""The apps of other limiters that are attacked: each as its own documentation begins."""
