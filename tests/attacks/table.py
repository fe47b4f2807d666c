"""All attacks."""

from attacks.on_identity import ON_IDENTITY
from attacks.on_routes import ON_ROUTES
from attacks.on_values import ON_VALUES

ATTACKS = [*ON_IDENTITY, *ON_ROUTES, *ON_VALUES]
