"""The engine: decides requests and calls, delays them, holds slots and settles charges."""
