"""A throttle for Django REST framework."""


class Throttle:
    """A throttle for Django REST framework."""
