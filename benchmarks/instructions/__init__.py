"""Instructions that a rate limit adds to a request: of this package, of its peers, and of limiters of a few lines.

They are counted by valgrind's callgrind, in user space, so neither the speed of the machine nor its load changes them.
A count is what 2N requests take beyond N, divided by N, minus the same for the app without a limiter.
"""
