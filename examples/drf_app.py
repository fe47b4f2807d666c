"""gunicorn examples.drf_app:application"""

import os
from typing import Any

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.urls import path

from ratelimit_mw.django import Throttle, exempt

settings.configure(
    ALLOWED_HOSTS=["*"],
    INSTALLED_APPS=["rest_framework", "ratelimit_mw.django"],
    MIDDLEWARE=["ratelimit_mw.django.RateLimitMiddleware"],
    RATELIMIT_MW={"limits": "5 per 3 seconds; 1000/hour", "store": os.environ.get("STORE", "memory://")},
    REST_FRAMEWORK={"DEFAULT_AUTHENTICATION_CLASSES": [], "UNAUTHENTICATED_USER": None},
    ROOT_URLCONF=__name__,
)
application = get_wsgi_application()
from rest_framework.response import Response  # noqa: E402  # once there are settings
from rest_framework.views import APIView  # noqa: E402


class Reports(Throttle):
    limits = "2 per 3 seconds burst 2 using token_bucket"


class Home(APIView):
    def get(self, request: Any, **found: int) -> Response:
        return Response(found)


@exempt  # from the default limits: the throttle stands instead of them
class Report(Home):
    throttle_classes: Any = (Reports,)


urlpatterns = [path("", Home.as_view()), path("reports/<int:report>", Report.as_view())]
