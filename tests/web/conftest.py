"""Django has to have its settings before some of its modules, and REST framework, can be imported."""

import web.django_site  # noqa: F401  # configures it
